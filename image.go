package cyborg

// Image says where a bitstream comes from and how to know it is the right one.
type Image struct {
	// Source is a path below the host's image directory ("file:path" or plain), or an http(s) URL.
	Source string `json:"source"`
	// SHA256 is the expected checksum, 64 hexadecimal digits; required for http(s).
	SHA256 string `json:"sha256,omitempty"`
	// ID is what is recorded as bitstream id; the checksum where empty.
	ID string `json:"id,omitempty"`
	// WholeDevice programs the whole device and so disturbs all its deployables.
	WholeDevice bool `json:"whole_device,omitempty"`
}
