-- what each country has paid
select
    customers.country,
    count(*) as orders,
    sum(paid.amount) as revenue
from {{ ref('paid_orders') }} as paid
join {{ source('raw', 'customers') }} as customers on customers.id = paid.customer
group by 1
