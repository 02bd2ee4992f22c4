// Package records is what every room of the store works with: the connections,
// transactions that are tried again when they collide, locks, the kinds of the
// errors, and the parts that queries are made of.
//
// It knows no subject: where a row or an error is here, several rooms need it
// that must not import each other. So it imports no other room.
package records
