// Package records is what every room of the store works with: the connections,
// transactions that are tried again when they collide, locks, the kinds of the
// errors, and the parts that queries are made of.
//
// It belongs to no subject, and imports no other room. A row or an error is
// here only where several rooms need it that must not import each other.
package records
