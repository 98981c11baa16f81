"""A text for each statement of Spark's grammar and of Delta's, by the names that these give their alternatives."""

from __future__ import annotations

STATEMENTS = {
    "AddTableColumns": "ALTER TABLE t ADD COLUMNS (x INT)",
    "AddTableConstraint": "ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)",
    "AddTablePartition": "ALTER TABLE t ADD PARTITION (a = 1)",
    "AlterClusterBy": "ALTER TABLE t CLUSTER BY (a)",
    "AlterTableAlterColumn": "ALTER TABLE t ALTER COLUMN a TYPE BIGINT",
    "AlterTableCollation": "ALTER TABLE t DEFAULT COLLATION UNICODE",
    "AlterViewQuery": "ALTER VIEW v AS SELECT * FROM t",
    "AlterViewSchemaBinding": "ALTER VIEW v WITH SCHEMA EVOLUTION",
    "Analyze": "ANALYZE TABLE t COMPUTE STATISTICS",
    "AnalyzeTables": "ANALYZE TABLES COMPUTE STATISTICS",
    "CacheTable": "CACHE TABLE c AS SELECT * FROM t",
    "Call": "CALL p(1)",
    "ClearCache": "CLEAR CACHE",
    "CommentNamespace": "COMMENT ON SCHEMA s IS 'x'",
    "CommentTable": "COMMENT ON TABLE t IS 'x'",
    "CreateFunction": "CREATE FUNCTION f AS 'a.B' USING JAR '/any/dir/x.jar'",
    "CreateIndex": "CREATE INDEX i ON t (a)",
    "CreateNamespace": "CREATE SCHEMA s LOCATION '/any/dir'",
    "CreatePipelineDataset": "CREATE MATERIALIZED VIEW m AS SELECT * FROM t",
    "CreatePipelineInsertIntoFlow": "CREATE FLOW f AS INSERT INTO m BY NAME SELECT * FROM t",
    "CreateTable": "CREATE TABLE n USING text LOCATION '/any/dir' AS SELECT 'x' AS value FROM t",
    "CreateTableLike": "CREATE TABLE n LIKE t",
    "CreateTempViewUsing": "CREATE TEMPORARY VIEW v USING text OPTIONS (path '/any/dir')",
    "CreateUserDefinedFunction": "CREATE FUNCTION f(x INT) RETURNS INT RETURN x + 1",
    "CreateVariable": "DECLARE VARIABLE x INT DEFAULT 5",
    "CreateView": "CREATE VIEW v AS SELECT * FROM t",
    "DescribeFunction": "DESCRIBE FUNCTION abs",
    "DescribeNamespace": "DESCRIBE SCHEMA default",
    "DescribeProcedure": "DESCRIBE PROCEDURE p",
    "DescribeQuery": "DESCRIBE QUERY SELECT * FROM t",
    "DescribeRelation": "DESCRIBE TABLE t",
    "DmlStatement": "INSERT INTO t SELECT * FROM u",
    "DropFunction": "DROP FUNCTION f",
    "DropIndex": "DROP INDEX i ON t",
    "DropNamespace": "DROP SCHEMA s CASCADE",
    "DropTable": "DROP TABLE t",
    "DropTableColumns": "ALTER TABLE t DROP COLUMNS (a)",
    "DropTableConstraint": "ALTER TABLE t DROP CONSTRAINT c",
    "DropTablePartitions": "ALTER TABLE t DROP PARTITION (a = 1)",
    "DropVariable": "DROP TEMPORARY VARIABLE x",
    "DropView": "DROP VIEW v",
    "Explain": "EXPLAIN SELECT * FROM t",
    "FailNativeCommand": "GRANT SELECT ON t TO u",
    "HiveChangeColumn": "ALTER TABLE t CHANGE COLUMN a a BIGINT",
    "HiveReplaceColumns": "ALTER TABLE t REPLACE COLUMNS (a BIGINT)",
    "LoadData": "LOAD DATA INPATH '/any/dir' INTO TABLE t",
    "ManageResource": "ADD JAR '/any/dir/x.jar'",
    "RecoverPartitions": "ALTER TABLE t RECOVER PARTITIONS",
    "RefreshFunction": "REFRESH FUNCTION f",
    "RefreshResource": "REFRESH '/any/dir'",
    "RefreshTable": "REFRESH TABLE t",
    "RenameTable": "ALTER TABLE t RENAME TO n",
    "RenameTableColumn": "ALTER TABLE t RENAME COLUMN a TO b",
    "RenameTablePartition": "ALTER TABLE t PARTITION (a = 1) RENAME TO PARTITION (a = 2)",
    "RepairTable": "MSCK REPAIR TABLE t",
    "ReplaceTable": "CREATE OR REPLACE TABLE n USING delta LOCATION '/any/dir' AS SELECT * FROM t",
    "SetCatalog": "SET CATALOG spark_catalog",
    "SetNamespaceCollation": "ALTER SCHEMA s DEFAULT COLLATION UNICODE",
    "SetNamespaceLocation": "ALTER SCHEMA s SET LOCATION '/any/dir'",
    "SetNamespaceProperties": "ALTER SCHEMA s SET PROPERTIES (a = 'b')",
    "SetTableLocation": "ALTER TABLE t SET LOCATION '/any/dir'",
    "SetTableProperties": "ALTER TABLE t SET TBLPROPERTIES (a = 'b')",
    "SetTableSerDe": "ALTER TABLE t SET SERDE 'a.B'",
    "ShowCatalogs": "SHOW CATALOGS",
    "ShowColumns": "SHOW COLUMNS IN t",
    "ShowCreateTable": "SHOW CREATE TABLE t",
    "ShowCurrentNamespace": "SHOW CURRENT NAMESPACE",
    "ShowFunctions": "SHOW FUNCTIONS",
    "ShowNamespaces": "SHOW SCHEMAS",
    "ShowPartitions": "SHOW PARTITIONS t",
    "ShowProcedures": "SHOW PROCEDURES",
    "ShowTableExtended": "SHOW TABLE EXTENDED LIKE 't'",
    "ShowTables": "SHOW TABLES",
    "ShowTblProperties": "SHOW TBLPROPERTIES t",
    "ShowViews": "SHOW VIEWS",
    "StatementDefault": "SELECT a FROM t",
    "TruncateTable": "TRUNCATE TABLE t",
    "UncacheTable": "UNCACHE TABLE t",
    "UnsetNamespaceProperties": "ALTER SCHEMA s UNSET PROPERTIES (a)",
    "UnsetTableProperties": "ALTER TABLE t UNSET TBLPROPERTIES (a)",
    "Use": "USE s",
    "UseNamespace": "USE SCHEMA s",
    "VisitExecuteImmediate": "EXECUTE IMMEDIATE 'DROP TABLE t'",
}

SET = {
    "FailSetRole": "SET ROLE admin",
    "ResetConfiguration": "RESET",
    "ResetQuotedConfiguration": "RESET `spark.sql.ansi.enabled`",
    "SetConfiguration": "SET spark.sql.ansi.enabled = false",
    "SetQuotedConfiguration": "SET `spark.sql.ansi.enabled` = `false`",
    "SetTimeZone": "SET TIME ZONE 'UTC'",
    "SetVariable": "SET VARIABLE x = 5",
}

DML = {
    "DeleteFromTable": "DELETE FROM t WHERE a = 1",
    "MergeIntoTable": "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE",
    "MultiInsertQuery": "FROM t INSERT INTO u SELECT a INSERT INTO t SELECT a",
    "SingleInsertQuery": "INSERT OVERWRITE DIRECTORY '/any/dir' USING text SELECT 'x' AS value FROM t",
    "UpdateTable": "UPDATE t SET a = 1",
}

INSERT = {
    "InsertIntoReplaceWhere": "INSERT INTO t REPLACE WHERE a = 1 SELECT * FROM u",
    "InsertIntoTable": "INSERT INTO TABLE t SELECT * FROM u",
    "InsertOverwriteDir": "INSERT OVERWRITE LOCAL DIRECTORY '/any/dir' USING text SELECT 'x' AS value FROM t",
    "InsertOverwriteHiveDir": "INSERT OVERWRITE DIRECTORY '/any/dir' STORED AS PARQUET SELECT * FROM t",
    "InsertOverwriteTable": "INSERT OVERWRITE TABLE t SELECT * FROM u",
}

SINCE_4_2 = {
    "statement": {
        "CloseCursorStatement": "CLOSE c",
        "CreateMetricView": "CREATE VIEW v WITH METRICS LANGUAGE YAML AS $$ source: t $$",
        "DeclareCursorStatement": "DECLARE c CURSOR FOR SELECT * FROM t",
        "FetchCursorStatement": "FETCH c INTO x",
        "OpenCursorStatement": "OPEN c",
        "ShowCollations": "SHOW COLLATIONS LIKE 'U*'",
    },
    "setResetStatement": {"SetPath": "SET PATH = SYSTEM_PATH"},
    "insertInto": {
        "InsertIntoReplaceBooleanCond": "INSERT INTO t REPLACE WHERE a = 1 SELECT * FROM u",
        "InsertIntoReplaceUsing": "INSERT INTO t REPLACE USING (a) SELECT * FROM u",
    },
}
"""The alternatives that the grammar of Spark 4.2 has and that of 4.1 has not, by their rules."""

UNTIL_4_1 = ("InsertIntoReplaceWhere",)
"""The alternatives that the grammar of Spark 4.1 has and that of 4.2 has not."""

SCRIPTS = (
    "BEGIN SELECT a FROM t; END",
    "BEGIN INSERT INTO t SELECT * FROM u; END",
    "BEGIN DECLARE x INT; SET x = 1; IF x > 0 THEN DROP TABLE t; END IF; END",
    "BEGIN WHILE 1 = 1 DO SELECT 1; END WHILE; END",
    "FROM (FROM t SELECT TRANSFORM (a) USING 'cat /any/dir/file') INSERT OVERWRITE DIRECTORY '/any/dir' SELECT *",
    "FROM t INSERT OVERWRITE DIRECTORY '/any/dir' USING text SELECT CAST(a AS STRING) AS value "
    "INSERT OVERWRITE LOCAL DIRECTORY '/any/dir' USING text SELECT 'x' AS value",
)
"""Statements of several, and such as lie within others."""

DELTA = {
    "AddTableConstraint": "ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)",
    "AlterTableClusterBy": "ALTER TABLE t CLUSTER BY NONE",
    "AlterTableDropFeature": "ALTER TABLE t DROP FEATURE x TRUNCATE HISTORY",
    "AlterTableSyncIdentity": "ALTER TABLE t ALTER COLUMN a SYNC IDENTITY",
    "Clone": "CREATE TABLE n SHALLOW CLONE t LOCATION '/any/dir'",
    "ClusterBy": "CREATE TABLE n (a INT) USING DELTA CLUSTER BY (a)",
    "Convert": "CONVERT TO DELTA parquet.`/any/dir`",
    "DescribeDeltaDetail": "DESCRIBE DETAIL '/any/dir'",
    "DescribeDeltaHistory": "DESCRIBE HISTORY '/any/dir'",
    "DropTableConstraint": "ALTER TABLE t DROP CONSTRAINT c",
    "Generate": "GENERATE symlink_format_manifest FOR TABLE t",
    "OptimizeTable": "OPTIMIZE '/any/dir' ZORDER BY (a)",
    "PassThrough": "SELECT a FROM t",
    "ReorgTable": "REORG TABLE t APPLY (PURGE)",
    "Restore": "RESTORE TABLE t TO VERSION AS OF 0",
    "VacuumTable": "VACUUM '/any/dir' RETAIN 0 HOURS",
}

QUERIES = {
    "queryPrimary": {
        "FromStmt": "FROM t SELECT a",
        "InlineTableDefault1": "VALUES (1, 2), (3, 4)",
        "QueryPrimaryDefault": "SELECT a FROM t",
        "Subquery": "(SELECT a FROM t)",
        "Table": "TABLE t",
    },
    "queryTerm": {
        "OperatorPipeStatement": "FROM t |> WHERE a > 1 |> SET a = 2 |> SELECT a",
        "QueryTermDefault": "SELECT a FROM t",
        "SetOperation": "SELECT a FROM t UNION ALL SELECT a FROM u",
    },
    "clauses": {
        "with": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r, t",
        "groups": "SELECT a, b, count(*) FILTER (WHERE a > 1) FROM t GROUP BY CUBE (a, b) HAVING count(*) > 1",
        "rollup": "SELECT a, b, grouping(a) FROM t GROUP BY ROLLUP (a, b) ORDER BY ALL LIMIT ALL",
        "sets": "SELECT a FROM t GROUP BY GROUPING SETS ((a), ()) ORDER BY 1 DESC NULLS LAST LIMIT 3 OFFSET 1",
        "windows": "SELECT sum(a) OVER w, lag(a, 1) OVER (PARTITION BY b ORDER BY a ROWS 1 PRECEDING) FROM t "
        "WINDOW w AS (PARTITION BY b ORDER BY a RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        "joins": "SELECT /*+ BROADCAST(u) */ * FROM t LEFT JOIN u USING (a) NATURAL JOIN u AS v, "
        "LATERAL explode(l) AS f(e)",
        "generators": "SELECT t.a, e, k FROM t LATERAL VIEW OUTER posexplode(l) p AS k, e",
        "pivot": "SELECT * FROM t PIVOT (max(a) AS m FOR b IN ('x' AS x, 'y'))",
        "unpivot": "SELECT * FROM t UNPIVOT INCLUDE NULLS (v FOR n IN (a, c))",
        "subqueries": "SELECT a, (SELECT max(a) FROM u) FROM t WHERE a IN (SELECT a FROM u) "
        "AND EXISTS (SELECT 1 FROM u) AND NOT a = ANY_VALUE(a) AND (a, b) NOT IN (SELECT a, b FROM u)",
        "sets of rows": "(SELECT a FROM t EXCEPT ALL SELECT a FROM u) INTERSECT (SELECT DISTINCT a FROM t)",
        "values": "SELECT * FROM VALUES (1, 'x'), (2, NULL) AS v(n, s) CROSS JOIN range(3)",
        "pipes": "FROM t |> EXTEND a + 1 AS c |> AGGREGATE sum(c) AS s GROUP BY b |> DROP b |> AS q "
        "|> ORDER BY s |> LIMIT 2",
        "sorts": "SELECT a FROM t DISTRIBUTE BY a SORT BY a",
    },
    "expressions": {
        "operators": "SELECT -a + +a - a * a / a % a, a DIV 2, ~a & a | a ^ a, a || b, a << 1, a >> 1, a >>> 1 FROM t",
        "conditions": "SELECT a FROM t WHERE a <=> 1 OR NOT a != 2 AND a BETWEEN 1 AND 3 OR b LIKE 'x%' ESCAPE '!' "
        "OR b ILIKE ANY ('a', 'b') OR b NOT LIKE ALL ('a', 'b') OR b RLIKE 'x' "
        "OR a IS NOT DISTINCT FROM 3 OR a IS NULL",
        "cases": "SELECT CASE a WHEN 1 THEN 'x' ELSE 'y' END, CASE WHEN a > 1 THEN 1 END, if(a > 1, 1, 2) FROM t",
        "casts": "SELECT CAST(a AS DECIMAL(18, 2)), a::string, try_cast(b AS INT), b COLLATE UNICODE FROM t",
        "fields": "SELECT s.x, l[0], m['k'], j:a.b[0], t.*, * EXCEPT (a), struct(a, b AS c), (a, b) FROM t",
        "times": "SELECT current_date, current_timestamp(), extract(YEAR FROM d), timestampadd(DAY, 1, d), "
        "timestampdiff(HOUR, d, d), DATE '2020-01-01' + INTERVAL '1' DAY, INTERVAL 2 MONTHS FROM t",
        "texts": "SELECT trim(BOTH 'x' FROM b), substring(b FROM 1 FOR 2), position('x' IN b), "
        "overlay(b PLACING 'y' FROM 1), r'raw\\d', X'1F', 1e3, 1.5BD, 10L FROM t",
        "lambdas": "SELECT transform(l, x -> x + 1), aggregate(l, 0, (s, x) -> s + x, s -> s * 2) FROM t",
        "aggregates": "SELECT first(a) IGNORE NULLS, last(a), any_value(a), count(DISTINCT a, b), "
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY a), listagg(b, ',') WITHIN GROUP (ORDER BY b) FROM t",
        "named": "SELECT mask(b, lowerChar => 'x') FROM t",
        "sizes": "SELECT repeat(b, 3), rpad(b, a, ' '), explode(sequence(1, a)), round(a, -2), "
        "format_string('%5d', a) FROM t",
    },
}
"""Forms of queries, all of which are to be taken."""
