"""The second layer: versions of customers, accounts, companies and securities with the time in which each held."""

from __future__ import annotations

_END = "timestamp '9999-12-31 23:59:59.999'"


def _version(at: str, key: str, order: str = "") -> str:
    """Until when a row held, and whether nothing has followed it."""
    by = order or f"{at} DESC"
    return f"""{at} AS effective_timestamp,
            coalesce(lag({at}) OVER (PARTITION BY {key} ORDER BY {by}) - interval '1' second, {_END}) AS end_timestamp,
            CASE WHEN row_number() OVER (PARTITION BY {key} ORDER BY {by}) = 1 THEN true ELSE false END AS is_current"""


_PERSON = """c_tax_id AS tax_id, c_gndr AS gender, c_tier AS tier, c_dob AS dob, c_l_name AS last_name,
            c_f_name AS first_name, c_adline1 AS address_line1, c_adline2 AS address_line2, c_zipcode AS postal_code,
            c_city AS city, c_state_prov AS state_province, c_ctry AS country, c_prim_email AS primary_email,
            c_phone AS phone, c_lcl_tx_id AS local_tax_rate_name, ltx.tx_rate AS local_tax_rate,
            c_nat_tx_id AS national_tax_rate_name, ntx.tx_rate AS national_tax_rate"""
_TAXED = """FROM crm_customer_mgmt c
        LEFT JOIN reference_tax_rate ntx ON c.c_nat_tx_id = ntx.tx_id
        LEFT JOIN reference_tax_rate ltx ON c.c_lcl_tx_id = ltx.tx_id"""
_HISTORY = "th_dts DESC, t_dts DESC, t_st_id DESC, th_st_id DESC"


def _issued(columns: str, rows: str) -> str:
    """The rows with the companies that issued them, which they name by number or by name."""
    return f"""SELECT {columns}, coalesce(c1.name, c2.name) AS company_name,
            coalesce(c1.company_id, c2.company_id) AS company_id
        FROM {rows} s
        LEFT JOIN companies c1 ON s.issuer = CAST(c1.company_id AS string)
            AND s.pts BETWEEN c1.effective_timestamp AND c1.end_timestamp
        LEFT JOIN companies c2 ON s.issuer = c2.name
            AND s.pts BETWEEN c2.effective_timestamp AND c2.end_timestamp"""


SILVER = {
    "accounts": f"""
        SELECT action_type, CASE action_type WHEN 'CLOSEACCT' THEN 'Inactive' ELSE 'Active' END AS status,
            ca_id AS account_id, ca_name AS account_desc, c_id AS customer_id, {_PERSON}, ca_tax_st AS tax_status,
            ca_b_id AS broker_id, {_version("action_ts", "ca_id")}
        {_TAXED} WHERE ca_id IS NOT NULL""",
    "customers": f"""
        SELECT action_type, CASE action_type WHEN 'INACT' THEN 'Inactive' ELSE 'Active' END AS status,
            c_id AS customer_id, ca_id AS account_id, {_PERSON}, ca_tax_st AS account_tax_status, ca_b_id AS broker_id,
            {_version("action_ts", "c_id")}
        {_TAXED} WHERE action_type IN ('NEW', 'INACT', 'UPDCUST')""",
    "companies": f"""
        SELECT cik AS company_id, st.st_name AS status, company_name AS name, ind.in_name AS industry, ceo_name AS ceo,
            city, founding_date, sp_rating, {_version("pts", "cik")}
        FROM finwire_company cmp
        JOIN reference_status_type st ON cmp.status = st.st_id
        JOIN reference_industry ind ON cmp.industry_id = ind.in_id""",
    "securities": f"""
        WITH issued AS ({_issued("s.*", "finwire_security")})
        SELECT symbol, issue_type, CASE status WHEN 'ACTV' THEN 'Active' WHEN 'INAC' THEN 'Inactive' END AS status,
            name, ex_id AS exchange_id, sh_out AS shares_outstanding, first_trade_date, dividend_cents, company_name,
            company_id, {_version("pts", "symbol")}
        FROM issued""",
    "financials": f"""
        WITH issued AS ({_issued("year, quarter, revenue, earnings, pts", "finwire_financial")})
        SELECT year, quarter, revenue, earnings, company_name, company_id, {_version("pts", "company_id")}
        FROM issued""",
    "employees": """
        SELECT employeeid AS employee_id, managerid AS manager_id, employeefirstname AS first_name,
            employeelastname AS last_name, employeejobcode AS job_code, employeebranch AS branch
        FROM hr_employee""",
    "dates": "SELECT sk_date_id, date_desc, year(sk_date_id) AS calendar_year FROM reference_date",
    "daily_market": """
        WITH cumulative AS (
            SELECT dm_date, dm_s_symb, dm_close, dm_high, dm_low, dm_vol,
                min(dm_low) OVER (PARTITION BY dm_s_symb ORDER BY dm_date) AS fifty_two_week_low,
                max(dm_high) OVER (PARTITION BY dm_s_symb ORDER BY dm_date) AS fifty_two_week_high
            FROM brokerage_daily_market
        ), flagged AS (
            SELECT *, CASE WHEN dm_low = fifty_two_week_low THEN dm_date END AS low_date,
                CASE WHEN dm_high = fifty_two_week_high THEN dm_date END AS high_date
            FROM cumulative
        )
        SELECT dm_date, dm_s_symb, dm_close, dm_high, dm_low, dm_vol, fifty_two_week_low, fifty_two_week_high,
            max(low_date) OVER (PARTITION BY dm_s_symb ORDER BY dm_date) AS fifty_two_week_low_date,
            max(high_date) OVER (PARTITION BY dm_s_symb ORDER BY dm_date) AS fifty_two_week_high_date
        FROM flagged""",
    "cash_transactions": """
        SELECT a.customer_id, t.ct_ca_id AS account_id, t.ct_dts AS transaction_timestamp, t.ct_amt AS amount,
            t.ct_name AS description
        FROM brokerage_cash_transaction t
        JOIN accounts a ON t.ct_ca_id = a.account_id
            AND t.ct_dts BETWEEN a.effective_timestamp AND a.end_timestamp""",
    "trades_history": f"""
        SELECT t_id AS trade_id, t_dts AS trade_timestamp, t_ca_id AS account_id, ts.st_name AS trade_status,
            tt_name AS trade_type, CASE t_is_cash WHEN 1 THEN 'Cash' WHEN 0 THEN 'Margin' END AS transaction_type,
            t_s_symb AS symbol, t_exec_name AS executor_name, t_qty AS quantity, t_bid_price AS bid_price,
            t_trade_price AS trade_price, t_chrg AS fee, t_comm AS commission, t_tax AS tax,
            us.st_name AS update_status, {_version("th_dts", "t_id", _HISTORY)}
        FROM brokerage_trade
        JOIN brokerage_trade_history ON t_id = th_t_id
        JOIN reference_trade_type ON t_tt_id = tt_id
        JOIN reference_status_type ts ON t_st_id = ts.st_id
        JOIN reference_status_type us ON th_st_id = us.st_id""",
    "trades": """
        SELECT DISTINCT trade_id, account_id, trade_status, trade_type, transaction_type, symbol, executor_name,
            quantity, bid_price, trade_price, fee, commission, tax,
            min(effective_timestamp) OVER (PARTITION BY trade_id) AS create_timestamp,
            max(effective_timestamp) OVER (PARTITION BY trade_id) AS close_timestamp
        FROM trades_history""",
    "holdings_history": """
        SELECT hh_t_id AS trade_id, hh_h_t_id AS previous_trade_id, hh_before_qty AS previous_quantity,
            hh_after_qty AS quantity, t.account_id, t.symbol, t.create_timestamp, t.close_timestamp, t.trade_price,
            t.bid_price, t.fee, t.commission
        FROM brokerage_holding_history h JOIN trades t ON h.hh_t_id = t.trade_id""",
    "watches_history": """
        SELECT w_c_id AS customer_id, w_s_symb AS symbol, w_dts AS watch_timestamp,
            CASE w_action WHEN 'ACTV' THEN 'Activate' WHEN 'CNCL' THEN 'Cancelled' END AS action_type,
            s.company_id, s.company_name, s.exchange_id, s.status AS security_status
        FROM brokerage_watch_history w JOIN securities s ON w.w_s_symb = s.symbol""",
    "watches": """
        WITH dated AS (
            SELECT *, CASE action_type WHEN 'Activate' THEN watch_timestamp END AS placed,
                CASE action_type WHEN 'Cancelled' THEN watch_timestamp END AS removed
            FROM watches_history
        ), grouped AS (
            SELECT customer_id, symbol, company_id, company_name, exchange_id, security_status,
                min(placed) AS placed_timestamp, max(removed) AS removed_timestamp
            FROM dated GROUP BY customer_id, symbol, company_id, company_name, exchange_id, security_status
        )
        SELECT *, CASE WHEN removed_timestamp IS NULL THEN 'Active' ELSE 'Inactive' END AS watch_status FROM grouped""",
}
