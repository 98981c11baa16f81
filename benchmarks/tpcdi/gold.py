"""The third layer: dimensions and facts with surrogate keys, and five reports of what stands out among them."""

from __future__ import annotations


def _surrogate(*columns: str) -> str:
    """A key that is the digest of others."""
    parts = ", '-', ".join(f"coalesce(CAST({each} AS string), 'none')" for each in columns)
    return f"md5(concat({parts}))" if len(columns) > 1 else f"md5({parts})"


def _filled(*columns: str) -> str:
    """The columns, each of the last version of a customer that says it."""
    over = "OVER (PARTITION BY customer_id ORDER BY effective_timestamp)"
    return ",\n            ".join(
        f"coalesce({each}, last_value({each}) IGNORE NULLS {over}) AS {each}" for each in columns
    )


def _held(fact: str, dimension: str) -> str:
    """The condition that a version of a dimension held at a moment."""
    return f"{fact} BETWEEN {dimension}.effective_timestamp AND {dimension}.end_timestamp"


def _z(value: str, mean: str, deviation: str) -> str:
    return f"round(({value} - {mean}) / nullif({deviation}, 0), 4)"


def _share(value: str, total: str) -> str:
    return f"round({value} * 100.0 / nullif({total}, 0), 4)"


_NOTIONAL = "sum(CAST(ft.trade_price AS double) * CAST(ft.quantity AS double))"

GOLD = {
    "dim_broker": f"""
        SELECT {_surrogate("employee_id")} AS sk_broker_id, employee_id AS broker_id, manager_id, first_name, last_name,
            job_code, branch
        FROM employees""",
    "dim_date": "SELECT * FROM dates",
    "dim_company": f"""
        SELECT {_surrogate("company_id", "effective_timestamp")} AS sk_company_id, company_id, status, name, industry,
            ceo, city, founding_date, sp_rating, effective_timestamp, end_timestamp, is_current
        FROM companies""",
    "dim_security": f"""
        SELECT {_surrogate("s.symbol", "s.effective_timestamp")} AS sk_security_id, symbol, issue_type,
            s.status, s.name, exchange_id, sk_company_id, shares_outstanding, first_trade_date, dividend_cents,
            s.effective_timestamp, s.end_timestamp, s.is_current
        FROM securities s
        JOIN dim_company c ON s.company_id = c.company_id AND {_held("s.effective_timestamp", "c")}""",
    "dim_customer": f"""
        WITH enriched AS (
            SELECT c.*, p.agency_id, p.credit_rating, p.net_worth
            FROM customers c LEFT JOIN syndicated_prospect p ON c.first_name = p.first_name
                AND c.last_name = p.last_name AND c.postal_code = p.postal_code AND c.address_line1 = p.address_line1
        )
        SELECT {_surrogate("customer_id", "effective_timestamp")} AS sk_customer_id, customer_id, status,
            {
        _filled(
            *("tax_id", "last_name", "first_name", "gender", "tier", "dob", "address_line1", "address_line2"),
            *("postal_code", "city", "state_province", "country", "phone", "primary_email", "local_tax_rate_name"),
            *("local_tax_rate", "national_tax_rate_name", "national_tax_rate"),
        )
    },
            agency_id, credit_rating, net_worth, effective_timestamp, end_timestamp, is_current
        FROM enriched""",
    "dim_account": f"""
        SELECT {_surrogate("a.account_id", "a.effective_timestamp")} AS sk_account_id, a.account_id, sk_broker_id,
            sk_customer_id, a.status, account_desc, tax_status, a.effective_timestamp, a.end_timestamp, a.is_current
        FROM accounts a
        JOIN dim_customer c ON a.customer_id = c.customer_id AND {_held("a.effective_timestamp", "c")}
        JOIN dim_broker b ON a.broker_id = b.broker_id""",
    "dim_trade": f"""
        SELECT {_surrogate("trade_id", "effective_timestamp")} AS sk_trade_id, trade_id, trade_status AS status,
            transaction_type, trade_type AS type, executor_name AS executed_by, effective_timestamp, end_timestamp,
            is_current
        FROM trades_history""",
    "fact_trade": f"""
        SELECT sk_trade_id, sk_broker_id, sk_customer_id, sk_account_id, sk_security_id,
            CAST(create_timestamp AS date) AS sk_create_date, create_timestamp,
            CAST(close_timestamp AS date) AS sk_close_date, close_timestamp, executed_by, quantity, bid_price,
            trade_price, fee, commission, tax
        FROM trades t
        JOIN dim_trade dt ON t.trade_id = dt.trade_id AND {_held("t.create_timestamp", "dt")}
        JOIN dim_account a ON t.account_id = a.account_id AND {_held("t.create_timestamp", "a")}
        JOIN dim_security s ON t.symbol = s.symbol AND {_held("t.create_timestamp", "s")}""",
    "fact_holdings": f"""
        SELECT ct.sk_trade_id AS sk_current_trade_id, pt.sk_trade_id, sk_customer_id, sk_account_id, sk_security_id,
            CAST(h.create_timestamp AS date) AS sk_trade_date, h.create_timestamp AS trade_timestamp,
            h.trade_price AS current_price, h.quantity AS current_holding, h.bid_price AS current_bid_price,
            h.fee AS current_fee, h.commission AS current_commission
        FROM holdings_history h
        JOIN dim_trade ct ON h.trade_id = ct.trade_id
        JOIN dim_trade pt ON h.previous_trade_id = pt.trade_id
        JOIN dim_account a ON h.account_id = a.account_id AND {_held("h.create_timestamp", "a")}
        JOIN dim_security s ON h.symbol = s.symbol""",
    "fact_cash_transactions": f"""
        SELECT sk_customer_id, sk_account_id, CAST(transaction_timestamp AS date) AS sk_transaction_date,
            transaction_timestamp, amount, description
        FROM cash_transactions t
        JOIN dim_account a ON t.account_id = a.account_id AND {_held("t.transaction_timestamp", "a")}""",
    "fact_cash_balances": """
        SELECT sk_customer_id, sk_account_id, sk_transaction_date, sum(amount) AS amount, description
        FROM fact_cash_transactions
        GROUP BY sk_customer_id, sk_account_id, sk_transaction_date, description""",
    "fact_watches": f"""
        SELECT sk_customer_id, sk_security_id, CAST(placed_timestamp AS date) AS sk_date_placed,
            CAST(removed_timestamp AS date) AS sk_date_removed, 1 AS watch_cnt
        FROM watches w
        JOIN dim_customer c ON w.customer_id = c.customer_id AND {_held("placed_timestamp", "c")}
        JOIN dim_security s ON w.symbol = s.symbol AND {_held("placed_timestamp", "s")}""",
    "fact_market_history": f"""
        WITH reported AS (
            SELECT f.company_id, f.earnings, f.revenue, f.effective_timestamp, f.end_timestamp, c.sk_company_id
            FROM financials f
            JOIN dim_company c ON f.company_id = c.company_id AND {_held("f.effective_timestamp", "c")}
        )
        SELECT s.sk_security_id, s.sk_company_id, d.dm_date AS sk_date_id,
            (s.dividend_cents / CAST(d.dm_close AS double)) / 100 AS yield, f.earnings, fifty_two_week_high,
            fifty_two_week_high_date AS sk_fifty_two_week_high_date, fifty_two_week_low,
            fifty_two_week_low_date AS sk_fifty_two_week_low_date, dm_close, dm_high, dm_low, dm_vol
        FROM daily_market d
        JOIN dim_security s ON s.symbol = d.dm_s_symb AND {_held("d.dm_date", "s")}
        LEFT JOIN reported f ON s.sk_company_id = f.sk_company_id AND {_held("d.dm_date", "f")}""",
    "broker_performance": f"""
        WITH broker_trades AS (
            SELECT ft.sk_broker_id, b.broker_id, b.first_name, b.last_name, count(*) AS trade_count,
                count(DISTINCT ft.sk_customer_id) AS unique_customers, sum(CAST(ft.quantity AS bigint)) AS total_volume,
                {_NOTIONAL} AS total_notional, avg(ft.trade_price) AS avg_trade_price,
                sum(ft.commission) AS total_commission, avg(ft.fee) AS avg_fee
            FROM fact_trade ft JOIN dim_broker b ON ft.sk_broker_id = b.sk_broker_id
            GROUP BY ft.sk_broker_id, b.broker_id, b.first_name, b.last_name HAVING count(*) >= 1
        ), without_refunds AS (
            SELECT * FROM broker_trades bt WHERE NOT EXISTS (
                SELECT 1 FROM fact_trade ft JOIN fact_cash_balances fb ON ft.sk_account_id = fb.sk_account_id
                WHERE ft.sk_broker_id = bt.sk_broker_id AND fb.amount < -4990)
        ), overall AS (
            SELECT sum(trade_count) AS trades, sum(total_notional) AS notional, avg(total_notional) AS mean_notional,
                stddev(total_notional) AS std_notional, avg(CAST(unique_customers AS double)) AS mean_customers,
                stddev(CAST(unique_customers AS double)) AS std_customers
            FROM broker_trades
        )
        SELECT b.*, {_share("b.trade_count", "o.trades")} AS pct_of_trades,
            {_share("b.total_notional", "o.notional")} AS pct_of_notional,
            {_z("b.total_notional", "o.mean_notional", "o.std_notional")} AS notional_z_score,
            {_z("b.unique_customers", "o.mean_customers", "o.std_customers")} AS customer_z_score,
            dense_rank() OVER (ORDER BY b.total_notional DESC) AS rank_by_notional,
            dense_rank() OVER (ORDER BY b.total_commission DESC) AS rank_by_commission
        FROM without_refunds b CROSS JOIN overall o""",
    "customer_concentration": f"""
        WITH positions AS (
            SELECT ft.sk_customer_id, ft.sk_account_id, ft.sk_security_id, s.symbol, count(*) AS trade_count,
                {_NOTIONAL} AS position_value, sum(CAST(ft.fee AS double) + CAST(ft.commission AS double)) AS costs
            FROM fact_trade ft JOIN dim_security s ON ft.sk_security_id = s.sk_security_id
            GROUP BY ft.sk_customer_id, ft.sk_account_id, ft.sk_security_id, s.symbol
        ), totals AS (
            SELECT sk_customer_id, count(DISTINCT sk_account_id) AS num_accounts,
                count(DISTINCT sk_security_id) AS num_securities, sum(trade_count) AS total_trades,
                sum(position_value) AS portfolio, sum(costs) AS total_costs, max(position_value) AS largest
            FROM positions GROUP BY sk_customer_id HAVING sum(trade_count) >= 2
        ), unwatched AS (
            SELECT * FROM totals t
            WHERE NOT EXISTS (SELECT 1 FROM fact_watches fw WHERE fw.sk_customer_id = t.sk_customer_id)
        ), overall AS (
            SELECT avg(portfolio) AS mean_portfolio, stddev(portfolio) AS std_portfolio, sum(portfolio) AS market
            FROM totals
        )
        SELECT u.sk_customer_id, u.num_accounts, u.num_securities, u.total_trades,
            round(u.portfolio, 6) AS total_portfolio_value, round(u.total_costs, 6) AS total_costs,
            {_share("u.largest", "u.portfolio")} AS concentration_pct,
            {_z("u.portfolio", "o.mean_portfolio", "o.std_portfolio")} AS portfolio_z_score,
            {_share("u.portfolio", "o.market")} AS pct_of_market,
            dense_rank() OVER (ORDER BY u.portfolio DESC) AS rank_by_portfolio,
            dense_rank() OVER (ORDER BY u.num_securities DESC) AS rank_by_diversity
        FROM unwatched u CROSS JOIN overall o""",
    "daily_market_pulse": f"""
        WITH days AS (
            SELECT dm_date, count(*) AS num_records, count(DISTINCT dm_s_symb) AS active_symbols,
                sum(dm_vol) AS total_volume, avg(dm_close) AS avg_close,
                round(stddev(CAST(dm_close AS double)), 6) AS dispersion, min(dm_low) AS market_low,
                max(dm_high) AS market_high
            FROM daily_market GROUP BY dm_date
        ), quiet AS (
            SELECT * FROM days d WHERE NOT EXISTS (SELECT 1 FROM fact_trade ft WHERE ft.sk_create_date = d.dm_date)
        ), followed AS (
            SELECT *, lag(total_volume) OVER (ORDER BY dm_date) AS prev_volume FROM quiet
        ), overall AS (
            SELECT avg(CAST(total_volume AS double)) AS mean_volume, stddev(CAST(total_volume AS double)) AS std_volume,
                sum(total_volume) AS volume
            FROM days
        )
        SELECT f.dm_date, f.num_records, f.active_symbols, f.total_volume, f.avg_close, f.dispersion, f.market_low,
            f.market_high, CASE WHEN f.prev_volume > 0
                THEN round((f.total_volume - f.prev_volume) * 100.0 / f.prev_volume, 4) END AS volume_change_pct,
            {_z("f.total_volume", "o.mean_volume", "o.std_volume")} AS volume_z_score,
            {_share("f.total_volume", "o.volume")} AS pct_of_total_volume,
            rank() OVER (ORDER BY f.total_volume DESC) AS rank_by_volume,
            rank() OVER (ORDER BY f.dispersion DESC) AS rank_by_dispersion
        FROM followed f CROSS JOIN overall o""",
    "market_volatility": f"""
        WITH changes AS (
            SELECT dm_s_symb, dm_date, dm_close, dm_vol, dm_high - dm_low AS intraday,
                lag(dm_close) OVER (PARTITION BY dm_s_symb ORDER BY dm_date) AS prev_close
            FROM daily_market
        ), returns AS (
            SELECT *, CASE WHEN prev_close > 0
                THEN CAST(dm_close - prev_close AS double) / CAST(prev_close AS double) END AS daily_return
            FROM changes
        ), symbols AS (
            SELECT dm_s_symb, count(*) AS trading_days, avg(daily_return) AS mean_return,
                stddev(daily_return) AS volatility, max(intraday) AS max_intraday, sum(dm_vol) AS total_volume,
                stddev(CAST(dm_vol AS double)) AS volume_volatility, count(DISTINCT dm_date) AS dates
            FROM returns GROUP BY dm_s_symb HAVING count(daily_return) >= 3
        ), overall AS (
            SELECT avg(volatility) AS mean_volatility, stddev(volatility) AS std_volatility, sum(total_volume) AS volume
            FROM symbols
        )
        SELECT s.dm_s_symb, s.trading_days, round(s.mean_return, 4) AS avg_daily_return,
            round(s.volatility, 4) AS return_volatility, s.max_intraday, s.total_volume,
            round(s.volume_volatility, 4) AS volume_volatility, s.dates,
            {_z("s.volatility", "o.mean_volatility", "o.std_volatility")} AS volatility_z_score,
            {_share("s.total_volume", "o.volume")} AS pct_market_volume,
            rank() OVER (ORDER BY s.volatility DESC) AS rank_by_volatility,
            rank() OVER (ORDER BY s.total_volume DESC) AS rank_by_volume
        FROM symbols s CROSS JOIN overall o""",
    "trade_volume_stats": f"""
        WITH stats AS (
            SELECT s.symbol, s.sk_security_id, s.sk_company_id, count(*) AS trade_count,
                count(DISTINCT ft.sk_account_id) AS unique_accounts, sum(CAST(ft.quantity AS bigint)) AS total_volume,
                {_NOTIONAL} AS total_notional, avg(ft.trade_price) AS avg_price,
                stddev(CAST(ft.trade_price AS double)) AS price_stddev, min(ft.trade_price) AS min_price,
                max(ft.trade_price) AS max_price, avg(ft.fee) AS avg_fee
            FROM fact_trade ft JOIN dim_security s ON ft.sk_security_id = s.sk_security_id
            GROUP BY s.symbol, s.sk_security_id, s.sk_company_id HAVING count(*) >= 2
        ), unwatched AS (
            SELECT * FROM stats t
            WHERE NOT EXISTS (SELECT 1 FROM fact_watches fw WHERE fw.sk_security_id = t.sk_security_id)
        ), overall AS (
            SELECT avg(CAST(trade_count AS double)) AS mean_count, stddev(CAST(trade_count AS double)) AS std_count,
                avg(total_notional) AS mean_notional, stddev(total_notional) AS std_notional,
                sum(trade_count) AS trades, sum(total_notional) AS notional
            FROM stats
        )
        SELECT u.*, {_share("u.trade_count", "o.trades")} AS pct_of_trades,
            {_share("u.total_notional", "o.notional")} AS pct_of_notional,
            {_z("u.trade_count", "o.mean_count", "o.std_count")} AS volume_z_score,
            {_z("u.total_notional", "o.mean_notional", "o.std_notional")} AS notional_z_score,
            rank() OVER (ORDER BY u.total_notional DESC) AS rank_by_notional,
            rank() OVER (ORDER BY u.trade_count DESC) AS rank_by_volume,
            dense_rank() OVER (ORDER BY u.unique_accounts DESC) AS rank_by_diversity
        FROM unwatched u CROSS JOIN overall o""",
}
