package config

// Glance configures which images of OpenStack's Glance are accepted. It is used
// only if OpenStack.Enabled.
type Glance struct {
	AllowMD5 bool `key:"allow_md5" default:"false" doc:"Also accept images for which Glance has no better checksum than an MD5. They were uploaded before Glance used other hashes."`
}
