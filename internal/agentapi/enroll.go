package agentapi

// The paths of the two requests that an agent makes without a good certificate.
const (
	EnrollPath = "/agent/v1/enroll"
	RenewPath  = "/agent/v1/renew"
)

// EnrollRequest asks for the first certificate of a host.
type EnrollRequest struct {
	// Host is the host for which the agent speaks. The certificate is for the host
	// that the token is for; the two must be the same.
	Host string `json:"host"`
	// Token is good once. It is in no log.
	Token string `json:"token"`
	// Request is a certificate request in DER. Only its key counts.
	Request []byte `json:"request"`
}

// RenewRequest asks for another certificate in place of the one with which the
// agent makes the request.
type RenewRequest struct {
	Request []byte `json:"request"` // as in EnrollRequest
}

// CertificateReply has a new certificate, and the authorities whose certificates
// the agent is to trust; both in PEM format.
type CertificateReply struct {
	Certificate string `json:"certificate"`
	Authorities string `json:"authorities"`
}
