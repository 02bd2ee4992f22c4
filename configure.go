package cyborg

// OperationConfigure installs, uninstalls or updates a driver's backend on a
// host.
const OperationConfigure OperationKind = "configure"

// ConfigureAction is what a ConfigureRequest does.
type ConfigureAction string

// The configure actions.
const (
	ConfigureInstall   ConfigureAction = "install"
	ConfigureUninstall ConfigureAction = "uninstall" // refused while one of its devices is in use
	ConfigureUpdate    ConfigureAction = "update"
)

// ConfigureRequest enables, disables or reconfigures a backend of a compiled-in
// driver on a host.
type ConfigureRequest struct {
	Host    string          `json:"host"`
	Backend string          `json:"backend"`
	Action  ConfigureAction `json:"action"`
	Driver  string          `json:"driver,omitempty"` // needed by install where the host has no such backend yet
	Options JSONObject      `json:"options,omitempty"`
}

// Kind returns OperationConfigure.
func (ConfigureRequest) Kind() OperationKind { return OperationConfigure }
