with orders as (

    select * from {{ source('raw', 'orders') }}

)

select
    id,
    customer,
    day,
    amount / 100.0 as amount,
    coalesce(note, 'isn''t said') as note
from orders
where status = 'paid'
