select id from {{ source('raw', 'orders') }}
