select customer, sum(total) as total, count(*) as orders
from {{ source('lake', 'orders') }}
where paid
group by customer
