select customer, total from {{ source('lake', 'orders') }} where paid
