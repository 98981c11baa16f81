select customer, total from {{ ref('customer_totals') }} where total > 100
