"""The sources of a brokerage, and what three batches bring: drawn from a seed, and sized by the number of trades.

The first batch is history: accounts and customers as records of a customer management system, companies and securities
as lines of a news wire, trades with the history of their states. The second and the third one bring a day each: records
of new and changed customers and accounts, trades that begin, trades of before that end, prices of one more day, cash,
holdings and watches. Prospects are changed, added and removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import numpy as np
import pyarrow as pa

BEGAN = datetime(2015, 1, 1)
DAYS = 365
"""Days of history."""

SECOND = np.timedelta64(1, "s")
COUNTRIES = ("United States of America", "Canada")
STATES = ("NY", "ON", "CA", "TX", "QC")
CITIES = ("Albany", "Toronto", "Fresno", "Austin", "Montreal", "Buffalo")
FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ian", "Joy", "Kai", "Lea", "Max", "Nora")
TAXES = tuple(f"{country}_TX{number}" for country in ("US", "CA") for number in range(4))
INDUSTRIES = ("AM", "BK", "CE", "DE", "EN", "FO")
STATUSES = {"ACTV": "Active", "CMPT": "Completed", "CNCL": "Canceled", "PNDG": "Pending", "SBMT": "Submitted"}
TRADE_TYPES = {"TMB": "Market Buy", "TMS": "Market Sell", "TLB": "Limit Buy", "TLS": "Limit Sell", "TSL": "Stop Loss"}
QUARTERS = 8
"""For which companies report before and within the history."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows by the number of trades, in about the proportions that TPC-DI's generator has."""

    trades: int

    @property
    def customers(self) -> int:
        return max(20, self.trades // 25)

    @property
    def accounts(self) -> int:
        return 2 * self.customers

    @property
    def companies(self) -> int:
        return max(6, self.trades // 400)

    @property
    def securities(self) -> int:
        return 2 * self.companies

    @property
    def brokers(self) -> int:
        return max(5, self.trades // 400)

    @property
    def prospects(self) -> int:
        return 2 * self.customers


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What a batch does to one source: `upserts` by the key, `deletes` of keys, and `appends`."""

    table: str
    appends: pa.Table | None = None
    upserts: pa.Table | None = None
    deletes: pa.Table | None = None
    key: str = ""


@dataclass
class SourceRows:
    """Draws the rows of all sources, and those of one batch after the other, which brings a `share` of the trades."""

    trades: int
    share: float
    seed: int
    sizes: Sizes = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = Sizes(self.trades)
        self._draw = np.random.default_rng(self.seed)
        self._next_trade = self.trades
        self._next_customer, self._next_account = self.sizes.customers, self.sizes.accounts
        self._next_prospect = self.sizes.prospects
        self._holders = self._draw.integers(0, self.sizes.customers, self.sizes.accounts)
        self._holders[: self.sizes.customers] = np.arange(self.sizes.customers)
        self._batch = 1

    def first(self) -> Mapping[str, pa.Table]:
        """All sources before the second batch."""
        ids = np.arange(self.trades)
        began = self._moments(0, DAYS - 30, self.trades)
        trades, history = self._trades(ids, began, ended=self._draw.random(self.trades) < 0.97)
        return {
            **self._references(),
            "customer_mgmt": self._customer_mgmt(),
            "finwire": self._finwire(),
            "hr": self._employees(),
            "trade": trades,
            "trade_history": history,
            "customer": self._customers(np.arange(0), 2),
            "account": self._accounts(np.arange(0), np.arange(0), 2),
            "daily_market": self._market(range(DAYS)),
            "cash_transaction": self._cash(self._moments(0, DAYS, self.trades * 9 // 10)),
            "holding_history": self._holdings(ids[: self.trades * 9 // 10]),
            "watch_history": self._watches(0, DAYS, self.trades),
            "prospect": self._prospects(np.arange(self.sizes.prospects)),
        }

    def batch(self, number: int, trades: pa.Table) -> list[SourceChange]:
        """What the second or the third batch brings; `trades` are those there are."""
        self._batch, day = number, DAYS + number - 2
        some = max(3, round(self.trades * self.share))
        few = max(2, round(self.sizes.customers * self.share))
        return [
            *self._people(number, few),
            *self._traded(day, some, trades),
            SourceChange("daily_market", self._market(range(day, day + 1))),
            SourceChange("cash_transaction", self._cash(self._moments(day, 1, some))),
            SourceChange("watch_history", self._watches(day, 1, some)),
        ]

    # --- people -------------------------------------------------------------------------------------------------------

    def _people(self, number: int, few: int) -> list[SourceChange]:
        """New and changed customers and accounts as records; prospects that come, go and change."""
        fresh = np.arange(self._next_customer, self._next_customer + few)
        changed = self._draw.choice(self._next_customer, few, replace=False)
        accounts = np.arange(self._next_account, self._next_account + 2 * few)
        self._holders = np.concatenate([self._holders, np.repeat(fresh, 2)])
        moved = self._draw.choice(self._next_account, few, replace=False)
        self._next_customer += few
        self._next_account += 2 * few
        prospects = np.arange(self._next_prospect, self._next_prospect + few)
        touched = self._draw.choice(self.sizes.prospects, 2 * few, replace=False)
        self._next_prospect += few
        upserts = pa.concat_tables([self._prospects(prospects), self._prospects(touched[:few])])
        return [
            SourceChange(
                "customer", pa.concat_tables([self._customers(fresh, number), self._customers(changed, number, "U")])
            ),
            SourceChange(
                "account",
                pa.concat_tables(
                    [
                        self._accounts(accounts, self._holders[accounts], number),
                        self._accounts(moved, self._holders[moved], number, "U"),
                    ]
                ),
            ),
            SourceChange(
                "prospect", upserts=upserts, deletes=pa.table({"agencyid": _named("P", touched[few:])}), key="agencyid"
            ),
        ]

    def _customer_mgmt(self) -> pa.Table:
        """Records of customers with one account each, of further accounts, and of changes; structs within structs."""
        size, accounts = self.sizes.customers, self.sizes.accounts
        changed = self._draw.choice(size, size // 2, replace=False)
        gone = self._draw.choice(size, size // 20, replace=False)
        moved = self._draw.choice(accounts, accounts // 3, replace=False)
        parts = (
            ("NEW", np.arange(size), np.arange(size), 0),
            ("ADDACCT", self._holders[size:], np.arange(size, accounts), 1),
            ("UPDCUST", changed, None, DAYS // 3),
            ("UPDACCT", self._holders[moved], moved, DAYS // 2),
            ("INACT", gone, None, DAYS - 40),
            ("CLOSEACCT", self._holders[gone], gone, DAYS - 40),
        )
        tables = []
        for action, customers, ids, day in parts:
            people = self._person(customers, whole=action in ("NEW", "UPDCUST"))
            account = self._account(ids, len(customers))
            at = self._moments(day, 20, len(customers)) if day else _moments_of(np.full(len(customers), 0))
            tables.append(
                pa.table(
                    {
                        "actionts": at,
                        "actiontype": pa.array([action] * len(customers)),
                        "customer": _struct({**people, "account": _struct(account)}),
                    }
                )
            )
        return pa.concat_tables(tables)

    def _person(self, ids: np.ndarray, *, whole: bool) -> dict[str, pa.Array]:
        """A customer's record; changes leave out what is not changed."""
        some = self._some(ids, 0.0 if whole else 1.0)
        name = {"c_l_name": some(_named("Last", ids % 97)), "c_f_name": some(_one_of(FIRST_NAMES, ids))}
        address = {
            "c_adline1": some(_named("Street ", ids)),
            "c_adline2": self._some(ids, 0.7 if whole else 1.0)(_named("Flat ", ids)),
            "c_zipcode": some(_named("Z", ids % 500)),
            "c_city": some(_one_of(CITIES, ids + self._batch)),
            "c_state_prov": some(_one_of(STATES, ids + self._batch)),
            "c_ctry": some(_one_of(COUNTRIES, ids)),
        }
        area, local = self._draw.integers(100, 999, len(ids)), self._draw.integers(1_000_000, 9_999_999, len(ids))
        phone = {"c_area_code": some(_named("", area)), "c_local": some(_named("", local))}
        return {
            "c_id": pa.array(ids, pa.int64()),
            "c_tax_id": some(_named("T", ids)),
            "c_gndr": some(_one_of(("F", "M", "U"), ids)),
            "c_tier": some(pa.array(1 + self._draw.integers(0, 3, len(ids)), pa.int32())),
            "c_dob": some(
                pa.array([date(1950, 1, 1) + timedelta(int(each) * 17 % 18_000) for each in ids], pa.date32())
            ),
            "name": _struct(name),
            "address": _struct(address),
            "phone": _struct(phone),
            "c_prim_email": some(_named("mail", ids)),
            "c_lcl_tx_id": some(_one_of(TAXES[:4], ids)),
            "c_nat_tx_id": some(_one_of(TAXES[4:], ids)),
        }

    def _account(self, ids: np.ndarray | None, size: int) -> dict[str, pa.Array]:
        none = ids is None
        own = np.zeros(size, np.int64) if ids is None else ids
        some = self._some(own, 1.0 if none else 0.0)
        return {
            "ca_id": some(pa.array(own, pa.int64())),
            "ca_tax_st": some(pa.array(own % 3, pa.int32())),
            "ca_b_id": some(pa.array(own % self.sizes.brokers, pa.int64())),
            "ca_name": some(_named(f"Account {self._batch} ", own)),
        }

    def _customers(self, ids: np.ndarray, number: int, flag: str = "I") -> pa.Table:
        """Records of a batch, without structs."""
        person = self._person(ids, whole=True)
        flat = {name: values for name, values in person.items() if not pa.types.is_struct(values.type)}
        for each in ("name", "address", "phone"):
            struct = person[each]
            flat |= {struct.type.field(place).name: struct.field(place) for place in range(struct.type.num_fields)}
        return pa.table({**self._recorded(len(ids), number, flag), **flat})

    def _accounts(self, ids: np.ndarray, holders: np.ndarray, number: int, flag: str = "I") -> pa.Table:
        own = {**self._account(ids, len(ids)), "ca_c_id": pa.array(holders, pa.int64())}
        return pa.table({**self._recorded(len(ids), number, flag), **own})

    def _recorded(self, size: int, number: int, flag: str) -> dict[str, pa.Array]:
        """When records of a batch are from, each at a moment of its own."""
        at = (DAYS + number - 2) * 86_400 + np.arange(size) + (43_200 if flag == "U" else 0)
        return {"cdc_flag": pa.array([flag] * size, pa.string()), "action_ts": _moments_of(at)}

    def _prospects(self, ids: np.ndarray) -> pa.Table:
        """Half of them are customers, by name and address."""
        size = len(ids)
        return pa.table(
            {
                "agencyid": _named("P", ids),
                "lastname": _named("Last", ids % 97),
                "firstname": _one_of(FIRST_NAMES, ids),
                "addressline1": _named("Street ", ids),
                "postalcode": _named("Z", ids % 500),
                "city": _one_of(CITIES, ids),
                "age": pa.array(18 + self._draw.integers(0, 70, size), pa.int32()),
                "income": pa.array(self._draw.integers(10_000, 400_000, size), pa.int64()),
                "creditrating": pa.array(self._draw.integers(300, 850, size), pa.int32()),
                "networth": pa.array(self._draw.integers(-10_000, 2_000_000, size), pa.int64()),
            }
        )

    # --- trades -------------------------------------------------------------------------------------------------------

    def _traded(self, day: int, some: int, trades: pa.Table) -> list[SourceChange]:
        """Trades begin, and half of those that were open end, each with a row of history; some holdings follow."""
        ids = np.arange(self._next_trade, self._next_trade + some)
        self._next_trade += some
        fresh, history = self._trades(ids, self._moments(day, 1, some), ended=self._draw.random(some) < 0.5)
        opened = np.asarray([status == "SBMT" for status in trades["t_st_id"].to_pylist()])
        ending = trades.filter(pa.array(opened & (self._draw.random(len(trades)) < 0.5)))
        place = ending.schema.get_field_index("t_st_id")
        ended = ending.set_column(place, "t_st_id", pa.array(["CMPT"] * len(ending), pa.string()))
        at = self._moments(day, 1, len(ended))
        closing = pa.table({"th_t_id": ended["t_id"], "th_dts": at, "th_st_id": ended["t_st_id"]})
        return [
            SourceChange("trade", upserts=pa.concat_tables([ended, fresh]), key="t_id"),
            SourceChange("trade_history", pa.concat_tables([history, closing])),
            SourceChange("holding_history", self._holdings(ids)),
        ]

    def _trades(self, ids: np.ndarray, began: pa.Array, *, ended: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Trades, and the history of each: it was submitted, and some were completed or canceled since."""
        size, draw = len(ids), self._draw
        prices = draw.integers(100, 9_999, size)
        last = np.where(ended, np.where(draw.random(size) < 0.95, "CMPT", "CNCL"), "SBMT")
        trades = pa.table(
            {
                "t_id": pa.array(ids, pa.int64()),
                "t_dts": began,
                "t_st_id": pa.array(last, pa.string()),
                "t_tt_id": _one_of(tuple(TRADE_TYPES), draw.integers(0, len(TRADE_TYPES), size)),
                "t_is_cash": pa.array(draw.integers(0, 2, size), pa.int32()),
                "t_s_symb": _named("S", draw.integers(0, self.sizes.securities, size)),
                "t_qty": pa.array(draw.integers(1, 1_000, size), pa.int32()),
                "t_bid_price": _cents(prices, 10),
                "t_ca_id": pa.array(self._account_of(size), pa.int64()),
                "t_exec_name": _one_of(FIRST_NAMES, draw.integers(0, len(FIRST_NAMES), size)),
                "t_trade_price": _cents(prices + draw.integers(-50, 50, size), 10),
                "t_chrg": _cents(draw.integers(100, 3_000, size), 10),
                "t_comm": _cents(draw.integers(0, 9_000, size), 10),
                "t_tax": _cents(draw.integers(0, 5_000, size), 10),
            }
        )
        over = np.nonzero(ended)[0]
        later = pa.array(np.asarray(began)[over] + draw.integers(60, 86_400, len(over)) * SECOND, began.type)
        parts = ((ids, began, np.full(size, "SBMT")), (ids[over], later, last[over]))
        history = [pa.table({"th_t_id": a, "th_dts": b, "th_st_id": pa.array(c, pa.string())}) for a, b, c in parts]
        return trades, pa.concat_tables(history)

    def _account_of(self, size: int) -> np.ndarray:
        """Accounts, of which the first ones trade more."""
        return np.minimum(
            self._draw.integers(0, self._next_account, size), self._draw.integers(0, self._next_account, size)
        )

    def _holdings(self, ids: np.ndarray) -> pa.Table:
        before = self._draw.integers(0, 500, len(ids))
        return pa.table(
            {
                "hh_h_t_id": pa.array(np.maximum(ids - self._draw.integers(0, 50, len(ids)), 0), pa.int64()),
                "hh_t_id": pa.array(ids, pa.int64()),
                "hh_before_qty": pa.array(before, pa.int32()),
                "hh_after_qty": pa.array(before + self._draw.integers(-100, 500, len(ids)), pa.int32()),
            }
        )

    def _cash(self, at: pa.Array) -> pa.Table:
        size = len(at)
        return pa.table(
            {
                "ct_ca_id": pa.array(self._account_of(size), pa.int64()),
                "ct_dts": at,
                "ct_amt": _cents(self._draw.integers(-500_000, 500_000, size), 10),
                "ct_name": _named("payment ", self._draw.integers(0, 9, size)),
            }
        )

    def _watches(self, day: int, days: int, size: int) -> pa.Table:
        """Watches are placed, and three in ten of them are removed later."""
        at = np.asarray(self._moments(day, days, size))
        customers, symbols = (
            self._draw.integers(0, self._next_customer * 4 // 5, size),
            self._draw.integers(0, self.sizes.securities * 4 // 5, size),
        )
        gone = self._draw.random(size) < 0.3
        actions = np.concatenate([np.full(size, "ACTV"), np.full(int(gone.sum()), "CNCL")])
        return pa.table(
            {
                "w_c_id": pa.array(np.concatenate([customers, customers[gone]]), pa.int64()),
                "w_s_symb": _named("S", np.concatenate([symbols, symbols[gone]])),
                "w_dts": pa.array(np.concatenate([at, at[gone] + 3_600 * SECOND]), pa.timestamp("us", "UTC")),
                "w_action": pa.array(actions, pa.string()),
            }
        )

    # --- the market ---------------------------------------------------------------------------------------------------

    def _market(self, days: range) -> pa.Table:
        """A row for each security and weekday."""
        securities = self.sizes.securities
        size = len(days) * securities
        low = self._draw.integers(100, 9_000, size)
        high = low + self._draw.integers(1, 900, size)
        return pa.table(
            {
                "dm_date": pa.array([(BEGAN + timedelta(day)).date() for day in days for _ in range(securities)]),
                "dm_s_symb": _named("S", np.tile(np.arange(securities), len(days))),
                "dm_close": _cents((low + high) // 2, 10),
                "dm_high": _cents(high, 10),
                "dm_low": _cents(low, 10),
                "dm_vol": pa.array(self._draw.integers(1, 1_000_000, size), pa.int64()),
            }
        )

    def _finwire(self) -> pa.Table:
        """Lines of fixed fields: companies twice, their securities, and what they report for each quarter."""
        sizes, lines = self.sizes, []
        for again in (0, DAYS // 2):
            for each in range(sizes.companies):
                industry, rating = INDUSTRIES[each % len(INDUSTRIES)], ("AAA", "BB", "C")[(each + again) % 3]
                city = CITIES[each % len(CITIES)]
                text = f"{f'Company {each}':<60}{each:>10}{'ACTV':<4}{industry:<2}{rating:<4}{'19800101':<8}{city:<25}"
                lines.append((again, "CMP", f"{text}{f'Chief {each} {again}':<46}"))
        for each in range(sizes.securities):
            held = each // 2
            shares, cents = int(self._draw.integers(1_000, 10**9)), int(self._draw.integers(1, 500))
            text = f"{f'S{each}':<15}{'COMMON':<6}{'ACTV':<4}{f'Security {each}':<70}{'NYSE':<6}{shares:>13}"
            issuer = f"{held:>10}" if each % 5 else f"Company {held}"
            lines.append((0, "SEC", f"{text}{'20000101':<8}{cents:>12}{issuer:<60}"))
        for each in range(sizes.companies):
            for quarter in range(QUARTERS):
                revenue, earnings = self._draw.integers(10**6, 10**9, 2)
                text = f"{2014 + quarter // 4:<4}{quarter % 4 + 1:<1}{revenue:>17}{earnings:>17}{each:>60}"
                lines.append((quarter * DAYS // QUARTERS, "FIN", text))
        days = np.asarray([day for day, _, _ in lines])
        at = _moments_of(days * 86_400 + np.where(np.asarray([kind == "FIN" for _, kind, _ in lines]), 7, 0))
        kinds, texts = (pa.array([line[place] for line in lines], pa.string()) for place in (1, 2))
        return pa.table({"pts": at, "rec_type": kinds, "line": texts})

    # --- what never changes -------------------------------------------------------------------------------------------

    def _references(self) -> dict[str, pa.Table]:
        days = [(BEGAN + timedelta(day)).date() for day in range(DAYS + 5)]
        rates = pa.array(self._draw.integers(1, 4_000, len(TAXES)) / 10_000, pa.float64())
        industries = {"in_id": list(INDUSTRIES), "in_name": [f"Industry {each}" for each in INDUSTRIES]}
        return {
            "date": pa.table({"sk_date_id": days, "date_desc": [f"{each:%B %d, %Y}" for each in days]}),
            "industry": pa.table({**industries, "in_sc_id": ["A"] * len(INDUSTRIES)}),
            "status_type": pa.table({"st_id": list(STATUSES), "st_name": list(STATUSES.values())}),
            "trade_type": pa.table({"tt_id": list(TRADE_TYPES), "tt_name": list(TRADE_TYPES.values())}),
            "tax_rate": pa.table(
                {"tx_id": list(TAXES), "tx_name": [f"Tax {each}" for each in TAXES], "tx_rate": rates}
            ),
        }

    def _employees(self) -> pa.Table:
        ids = np.arange(self.sizes.brokers)
        return pa.table(
            {
                "employeeid": pa.array(ids, pa.int64()),
                "managerid": pa.array(ids // 5, pa.int64()),
                "employeefirstname": _one_of(FIRST_NAMES, ids),
                "employeelastname": _named("Last", ids),
                "employeejobcode": pa.array(np.where(ids % 9, 314, 700), pa.int32()),
                "employeebranch": _named("Branch ", ids % 7),
            }
        )

    # --- values -------------------------------------------------------------------------------------------------------

    def _moments(self, day: int, days: int, size: int) -> pa.Array:
        """Moments within these days, in no order."""
        return _moments_of(day * 86_400 + self._draw.integers(0, days * 86_400, size))

    def _some(self, ids: np.ndarray, nulls: float) -> _Nulls:
        return _Nulls(self._draw.random(len(ids)) < nulls)


@dataclass(frozen=True)
class _Nulls:
    """Puts nulls into columns, at places that were drawn."""

    places: np.ndarray

    def __call__(self, values: pa.Array) -> pa.Array:
        return pa.array(
            [None if gone else each for gone, each in zip(self.places, values.to_pylist(), strict=True)], values.type
        )


def _moments_of(seconds: np.ndarray) -> pa.Array:
    """Moments so many seconds after the first day."""
    return pa.array(np.datetime64(BEGAN, "us") + seconds.astype(np.int64) * SECOND, pa.timestamp("us", "UTC"))


def _named(name: str, numbers: np.ndarray) -> pa.Array:
    return pa.array([f"{name}{each}" for each in numbers], pa.string())


def _one_of(values: tuple[str, ...], numbers: np.ndarray) -> pa.Array:
    return pa.array([values[each % len(values)] for each in numbers], pa.string())


def _cents(values: np.ndarray, digits: int) -> pa.Array:
    return pa.array(values / 100, pa.float64()).cast(pa.decimal128(digits + 4, 2)).cast(pa.decimal128(digits, 2))


def _struct(columns: Mapping[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
