package config

// Glance configures which images of OpenStack's Glance are accepted. It is used
// only if OpenStack.Enabled.
type Glance struct {
	AllowMD5 bool `key:"allow_md5" default:"false" doc:"Take images too of which Glance has no better checksum than an MD5 (uploaded before it hashed images otherwise)."`
}
