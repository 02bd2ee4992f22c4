package db_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const schemaFile = "schema.sql"

// selectSchema lists the schema from the catalogs and not by pg_dump, whose
// output differs from one PostgreSQL to the next. Each row is one statement.
// Newer releases of PostgreSQL list NOT NULL as constraints and leave out table
// names that a view does not need, so that neither is in the listing.
const selectSchema = `
	SELECT statement FROM (
		SELECT 1 AS part, c.relname AS name, '' AS detail, format(E'\nCREATE TABLE %s (\n    %s\n)%s', c.relname, array_to_string(
		    ARRAY(
		        SELECT concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END, CASE
		            WHEN a.attidentity <> '' THEN 'GENERATED ALWAYS AS IDENTITY'
		            WHEN a.attgenerated <> '' THEN format('GENERATED ALWAYS AS (%s) STORED', regexp_replace(trim(pg_get_expr(d.adbin, d.adrelid, true), E'\n'), '\s+', ' ', 'g'))
		            ELSE 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid, true) END)
		        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
		    || ARRAY(
		        SELECT format('CONSTRAINT %s %s', conname, pg_get_constraintdef(oid, true)) FROM pg_constraint
		        WHERE conrelid = c.oid AND contype IN ('p', 'u', 'f', 'c') ORDER BY array_position('{p,u,f,c}', contype::text), conname), E',\n    '),
		    ' WITH (' || array_to_string(c.reloptions, ', ') || ')') AS statement
		FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
		UNION ALL
		SELECT 1, t.relname, 'index ' || c.relname, pg_get_indexdef(i.indexrelid, 0, true)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
		WHERE t.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid AND contype IN ('p', 'u'))
		UNION ALL
		SELECT 1, c.relname, 'trigger ' || t.tgname, pg_get_triggerdef(t.oid, true)
		FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal
		UNION ALL
		SELECT 2, c.relname, '', E'\nCREATE VIEW ' || c.relname || E' AS\n' || regexp_replace(rtrim(pg_get_viewdef(c.oid, true), ';'),
		    '\m(' || (SELECT string_agg(relname, '|') FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace) || ')\.', '', 'g')
		FROM pg_class c WHERE c.relkind = 'v' AND c.relnamespace = 'public'::regnamespace
		UNION ALL
		SELECT 3, p.proname, '', E'\n' || rtrim(replace(pg_get_functiondef(p.oid), 'FUNCTION public.', 'FUNCTION '), E'\n')
		FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace) AS all_statements
	WHERE name <> 'goose_db_version' ORDER BY part, name, detail COLLATE "C"`

// TestSchema: schema.sql is what the migrations make, each table once. After a
// new migration, run
//
//	go test ./db -run TestSchema -update
func TestSchema(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	rows, err := r.sql.Query(t.Context(), selectSchema)
	require.NoError(t, err)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)

	want := "-- What the migrations make, to look things up and to see what one changes. To be read: nothing runs it.\n" +
		"-- Written by go test ./db -run TestSchema -update.\n" + strings.Join(statements, ";\n") + ";\n"
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile(schemaFile, []byte(want), 0o600))
		return
	}
	current, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, want, string(current), "the migrations changed; run go test ./db -run TestSchema -update")
}
