package config

// Glance says which of the cloud's images are taken. It is used where there is an OpenStack.
type Glance struct {
	AllowMD5 bool `key:"allow_md5" default:"false" doc:"Take images too of which Glance has no better checksum than an MD5 (uploaded before it hashed images otherwise)."`
}
