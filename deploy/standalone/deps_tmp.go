package main

import (
	_ "github.com/temporalio/ui-server/v2/server"
	_ "go.temporal.io/server/common/dynamicconfig"
	_ "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	_ "go.temporal.io/server/schema/postgresql/v12"
	_ "go.temporal.io/server/temporal"
	_ "go.temporal.io/server/tools/common/schema"
	_ "go.temporal.io/server/tools/sql"
)

func main() {}
