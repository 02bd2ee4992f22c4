// Package merge decides what a report makes of the records of a host: which
// rows are new, which change, which are missing, and what the host is told
// about the rest.
//
// It works on rows in memory, and touches no database: it must not import pgx,
// nor a room that does.
package merge
