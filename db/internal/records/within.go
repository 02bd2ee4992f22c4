package records

// Within returns an SQL condition: a time of the database is at most the
// interval away from now. Nobody can say how long ago a time was that lies in
// the future, because the database's clock was set back since. A condition that
// only looked at the past would count it as of now until the clock has caught
// up.
func Within(time, interval string) string {
	return time + " BETWEEN clock_timestamp() - " + interval + " AND clock_timestamp() + " + interval
}
