select day, status, count(*) as orders, max(id) as last_id
from {{ source('raw', 'orders') }}
group by day, status
