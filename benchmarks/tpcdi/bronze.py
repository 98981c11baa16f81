"""The first layer: a view of each source, in which records are flattened, lines are cut and names are put right."""

from __future__ import annotations

from collections.abc import Mapping

_PERSON = (
    *("c_id", "c_tax_id", "c_gndr", "c_tier", "c_dob", "c_l_name", "c_f_name", "c_adline1", "c_adline2", "c_zipcode"),
    *("c_city", "c_state_prov", "c_ctry", "c_prim_email", "c_area_code", "c_local", "c_lcl_tx_id", "c_nat_tx_id"),
)
_WITHIN = {
    **dict.fromkeys(("c_l_name", "c_f_name"), "name"),
    **dict.fromkeys(("c_adline1", "c_adline2", "c_zipcode", "c_city", "c_state_prov", "c_ctry"), "address"),
    **dict.fromkeys(("c_area_code", "c_local"), "phone"),
}
"""The structs of a record that have a field each."""

_TYPES = {"c_id": "bigint", "c_tier": "int", "c_dob": "date"}
_ACCOUNT = {"ca_id": "bigint", "ca_tax_st": "int", "ca_b_id": "bigint", "ca_name": "string"}


def _listed(columns: Mapping[str, str]) -> str:
    """The columns of a customer's record, the telephone number as one."""
    phone = f"concat_ws('-', {columns['c_area_code']}, {columns['c_local']}) AS c_phone"
    others = (name for name in columns if name not in ("c_area_code", "c_local"))
    return ", ".join([*(f"{columns[name]} AS {name}" for name in others), phone])


def _part(value: str, at: int, length: int) -> str:
    return f"trim(substring({value}, {at}, {length}))"


def _day(at: int) -> str:
    """A date of eight digits within a line."""
    year, month, day = (f"substring(line, {at + start}, {size})" for start, size in ((0, 4), (4, 2), (6, 2)))
    written = f"CAST(concat({year}, '-', {month}, '-', {day}) AS date)"
    return f"CASE WHEN {_part('line', at, 8)} = '' THEN NULL ELSE {written} END"


_RECORDS = _listed({name: f"customer.{_WITHIN[name] + '.' if name in _WITHIN else ''}{name}" for name in _PERSON})
_FLAT = _listed({name: name for name in _PERSON})
_NOBODY = _listed(
    {name: f"CAST(NULL AS {_TYPES.get(name, 'string')})" if name != "c_id" else "ca_c_id" for name in _PERSON}
)
_OF_RECORDS = ", ".join(f"customer.account.{name} AS {name}" for name in _ACCOUNT)
_NO_ACCOUNT = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _ACCOUNT.items())

BRONZE = {
    "brokerage_cash_transaction": "SELECT ct_ca_id, ct_dts, ct_amt, ct_name FROM raw_cash_transaction",
    "brokerage_daily_market": """SELECT dm_date, dm_s_symb, dm_close, dm_high, dm_low, dm_vol FROM raw_daily_market""",
    "brokerage_holding_history": """
        SELECT hh_h_t_id, hh_t_id, hh_before_qty, hh_after_qty FROM raw_holding_history""",
    "brokerage_trade": """
        SELECT t_id, t_dts, t_st_id, t_tt_id, t_is_cash, t_s_symb, t_qty, t_bid_price, t_ca_id, t_exec_name,
            t_trade_price, t_chrg, t_comm, t_tax
        FROM raw_trade""",
    "brokerage_trade_history": "SELECT th_t_id, th_dts, th_st_id FROM raw_trade_history",
    "brokerage_watch_history": "SELECT w_c_id, w_s_symb, w_dts, w_action FROM raw_watch_history",
    "crm_customer_mgmt": f"""
        SELECT actionts AS action_ts, actiontype AS action_type, {_RECORDS}, {_OF_RECORDS} FROM raw_customer_mgmt
        UNION ALL
        SELECT action_ts, CASE cdc_flag WHEN 'I' THEN 'NEW' WHEN 'U' THEN 'UPDCUST' END AS action_type,
            {_FLAT}, {_NO_ACCOUNT}
        FROM raw_customer WHERE cdc_flag IN ('I', 'U')
        UNION ALL
        SELECT action_ts, CASE cdc_flag WHEN 'I' THEN 'ADDACCT' WHEN 'U' THEN 'UPDACCT' END AS action_type,
            {_NOBODY}, {", ".join(_ACCOUNT)}
        FROM raw_account WHERE cdc_flag IN ('I', 'U')""",
    "finwire_company": f"""
        SELECT pts, {_part("line", 1, 60)} AS company_name, CAST({_part("line", 61, 10)} AS bigint) AS cik,
            {_part("line", 71, 4)} AS status, {_part("line", 75, 2)} AS industry_id,
            {_part("line", 77, 4)} AS sp_rating, {_day(81)} AS founding_date, {_part("line", 89, 25)} AS city,
            {_part("line", 114, 46)} AS ceo_name
        FROM raw_finwire WHERE rec_type = 'CMP'""",
    "finwire_financial": f"""
        SELECT pts, CAST({_part("line", 1, 4)} AS int) AS year, CAST({_part("line", 5, 1)} AS int) AS quarter,
            CAST({_part("line", 6, 17)} AS bigint) AS revenue, CAST({_part("line", 23, 17)} AS bigint) AS earnings,
            {_part("line", 40, 60)} AS issuer
        FROM raw_finwire WHERE rec_type = 'FIN'""",
    "finwire_security": f"""
        SELECT pts, {_part("line", 1, 15)} AS symbol, {_part("line", 16, 6)} AS issue_type,
            {_part("line", 22, 4)} AS status, {_part("line", 26, 70)} AS name, {_part("line", 96, 6)} AS ex_id,
            CAST({_part("line", 102, 13)} AS bigint) AS sh_out, {_day(115)} AS first_trade_date,
            CAST({_part("line", 123, 12)} AS bigint) AS dividend_cents, {_part("line", 135, 60)} AS issuer
        FROM raw_finwire WHERE rec_type = 'SEC'""",
    "hr_employee": """
        SELECT employeeid, managerid, employeefirstname, employeelastname, employeejobcode, employeebranch
        FROM raw_hr WHERE employeejobcode = 314""",
    "reference_date": "SELECT sk_date_id, date_desc FROM raw_date",
    "reference_industry": "SELECT in_id, in_name, in_sc_id FROM raw_industry",
    "reference_status_type": "SELECT st_id, st_name FROM raw_status_type",
    "reference_tax_rate": "SELECT tx_id, tx_name, tx_rate FROM raw_tax_rate",
    "reference_trade_type": "SELECT tt_id, tt_name FROM raw_trade_type",
    "syndicated_prospect": """
        SELECT agencyid AS agency_id, lastname AS last_name, firstname AS first_name, addressline1 AS address_line1,
            postalcode AS postal_code, city, age, income, creditrating AS credit_rating, networth AS net_worth
        FROM raw_prospect""",
}
