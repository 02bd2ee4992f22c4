package adopt

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// Remark is a finding about one row of the upstream records.
type Remark struct {
	Table string
	Row   int64 // upstream's id of the row
	UUID  string
	Text  string
}

// String returns the remark as a line of the report.
func (r Remark) String() string { return fmt.Sprintf("%s %d (%s): %s", r.Table, r.Row, r.UUID, r.Text) }

// converter converts the upstream records to ours. Its methods must be called
// in convert's order, because each kind of row refers to kinds that were
// converted before it.
type converter struct {
	from     *upstream
	adoption db.Adoption
	refused  []Remark // rows that cannot be converted; a single one prevents the whole adoption
	notes    []Remark // rows that are adopted with a change

	// What was converted so far, by upstream's ids. A row that was refused is
	// missing.
	devices     map[int64]*db.AdoptedDevice
	statuses    map[int64]string // of devices
	deployables map[int64]int    // index in adoption.Deployables
	handles     map[int64]int    // index in adoption.Handles
	paths       map[int64]controlPath
	profiles    map[int64]*cyborg.DeviceProfile
}

// convert converts the upstream records. Rows that it refuses are in the
// remarks and not in the adoption.
func convert(from *upstream) *converter {
	c := &converter{
		from: from, devices: map[int64]*db.AdoptedDevice{}, statuses: map[int64]string{}, deployables: map[int64]int{},
		handles: map[int64]int{}, paths: map[int64]controlPath{}, profiles: map[int64]*cyborg.DeviceProfile{},
	}

	// Each kind of row comes after the kinds that it refers to. A row that was
	// refused is missing afterwards, so that rows that refer to it are refused,
	// too.
	for _, p := range from.profiles {
		c.profile(p)
	}

	c.convertDevices()

	for _, d := range from.deployables {
		c.deployable(d)
	}

	for _, a := range from.attributes {
		c.attribute(a)
	}

	for _, h := range from.handles {
		c.handle(h)
	}

	// holders has the bound request of each handle, by the handle's id. It shows
	// handles that were given out twice.
	holders := map[int64]arq{}
	for _, a := range from.arqs {
		c.arq(a, holders)
	}

	// The last two look at rows together: handles against requests, and names
	// against each other.
	c.noteLeaks(holders)
	c.checkUnique()

	return c
}

// refuse records that a row cannot be converted.
func (c *converter) refuse(table string, row int64, id, format string, args ...any) {
	c.refused = append(c.refused, Remark{table, row, id, fmt.Sprintf(format, args...)})
}

// note records that a row is adopted with a change.
func (c *converter) note(table string, row int64, id, format string, args ...any) {
	c.notes = append(c.notes, Remark{table, row, id, fmt.Sprintf(format, args...)})
}

// when returns the creation time of a row in UTC, or now if upstream has left
// it out.
func when(s stamps) time.Time {
	if s.created.Valid {
		return s.created.Time.UTC()
	}
	return time.Now().UTC()
}

// profile converts a device profile.
func (c *converter) profile(p profile) {
	refuse := func(format string, args ...any) { c.refuse("device_profiles", p.id, p.uuid, format, args...) }

	id, err := uuid.Parse(p.uuid)
	if err != nil {
		refuse("uuid %q is no UUID", p.uuid)
		return
	}

	var content struct {
		Groups []map[string]string `json:"groups"`
	}

	// An unknown member could change the meaning of the profile, so it is refused
	// rather than ignored.
	decoder := json.NewDecoder(strings.NewReader(p.json))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil || len(content.Groups) == 0 {
		refuse("profile_json is %.200q, not groups of texts", p.json)
		return
	}

	if !cyborg.IsName(p.name) {
		refuse("%.80q cannot be a name", p.name)
		return
	}

	out := cyborg.DeviceProfile{UUID: id, Name: p.name, Description: p.description.String, Groups: content.Groups, CreatedAt: when(p.stamps)}
	if p.updated.Valid {
		out.UpdatedAt = p.updated.Time.UTC()
	}

	c.profiles[p.id] = &out
	c.adoption.Profiles = append(c.adoption.Profiles, out)
}

// typesTable lists the device types of upstream.
var typesTable = []cyborg.DeviceType{cyborg.DeviceTypeGPU, cyborg.DeviceTypeFPGA, cyborg.DeviceTypeAIChip, cyborg.DeviceTypeQAT, cyborg.DeviceTypeNIC, cyborg.DeviceTypeSSD}

// convertDevices converts the devices, each with its control path. Two devices
// at the same address of a host are refused, because our records know a device
// by host and address.
func (c *converter) convertDevices() {
	paths := map[int64][]controlPath{}
	for _, path := range c.from.controlPaths {
		paths[path.device] = append(paths[path.device], path)
		c.paths[path.id] = path
	}

	taken := map[string]device{}
	for _, d := range c.from.devices {
		out := c.device(d, paths[d.id])
		if out == nil {
			continue
		}

		place := out.Host + " " + out.Identity
		if other, twice := taken[place]; twice {
			c.refuse("devices", d.id, d.uuid, "host %s has %s twice, also as device %d", out.Host, out.Identity, other.id)
			continue
		}

		taken[place] = d
		c.devices[d.id], c.statuses[d.id] = out, d.status
	}
}

// device converts a device; it returns nil after a refusal. A device needs
// exactly one control path, its PCI address, because that becomes its identity.
func (c *converter) device(d device, paths []controlPath) *db.AdoptedDevice {
	refuse := func(format string, args ...any) *db.AdoptedDevice {
		c.refuse("devices", d.id, d.uuid, format, args...)
		return nil
	}

	id, err := uuid.Parse(d.uuid)
	switch {
	case err != nil:
		return refuse("uuid %q is no UUID", d.uuid)
	case !slices.Contains(typesTable, cyborg.DeviceType(d.kind)):
		return refuse("type %q is not known", d.kind)
	case cyborg.CheckHostName(d.hostname) != nil:
		return refuse("hostname %.80q is no name of a host", d.hostname)
	case d.status != "enabled" && d.status != "maintaining":
		return refuse("status %q is not known", d.status)
	case len(paths) != 1:
		return refuse("it has %d control paths, not one", len(paths))
	case paths[0].kind != "PCI":
		return refuse("its control path is of cpid_type %q, not PCI", paths[0].kind)
	}

	// The address becomes the identity until a report of the agent, which is
	// matched by the same address, brings the real one.
	address, _, err := pciInfo(paths[0].info)
	if err != nil {
		return refuse("its control path is %.200q: %v", paths[0].info, err)
	}

	out := &db.AdoptedDevice{
		UUID: id, Host: d.hostname, Driver: adopter, Identity: address.String(), Type: cyborg.DeviceType(d.kind),
		VendorID: strings.ToLower(strings.TrimPrefix(d.vendor, "0x")), Vendor: d.vendor, Model: d.model, BoardInfo: cyborg.JSONObject{},
		ControlPathKind: "PCI", ControlPathInfo: address.HandleInfo(), CreatedAt: when(d.stamps),
	}

	// Upstream has two texts about the board. Ours is one object: the members of
	// std_board_info, with vendor_board_info as one more member.
	if d.vendorBoardInfo.Valid {
		out.BoardInfo["vendor_board_info"] = d.vendorBoardInfo.String
	}

	if d.stdBoardInfo.Valid {
		var info cyborg.JSONObject
		if err := json.Unmarshal([]byte(d.stdBoardInfo.String), &info); err != nil {
			return refuse("std_board_info is %.200q, no JSON object", d.stdBoardInfo.String)
		}

		if product := info["product_id"]; product != nil {
			text, ok := product.(string)
			if !ok {
				return refuse("product_id is %v, no text, in its std_board_info", product)
			}
			out.ProductID = strings.ToLower(strings.TrimPrefix(text, "0x"))
		}
		delete(info, "product_id") // it is in ProductID, from which /v2 shows it

		maps.Copy(out.BoardInfo, info)
	}

	c.adoption.Devices = append(c.adoption.Devices, *out)
	return out
}

// pciInfo reads a PCI address as upstream stores it: a JSON object of
// hexadecimal texts that may lack leading zeros. It returns the address and all
// members of the object.
func pciInfo(text string) (cyborg.PCIAddress, map[string]string, error) {
	var info map[string]string
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return cyborg.PCIAddress{}, nil, fmt.Errorf("it is no JSON object of texts")
	}

	var numbers [4]uint64
	for i, part := range []struct {
		key  string
		bits int
		most uint64
	}{{"domain", 32, 1<<32 - 1}, {"bus", 8, 0xff}, {"device", 8, 0x1f}, {"function", 8, 7}} {
		// device and function have fewer bits than ParseUint checks, so the value has a
		// bound of its own.
		number, err := strconv.ParseUint(info[part.key], 16, part.bits)
		if err != nil || number > part.most {
			return cyborg.PCIAddress{}, nil, fmt.Errorf("%s is %q", part.key, info[part.key])
		}
		numbers[i] = number
	}

	return cyborg.PCIAddress{
		Domain: uint32(numbers[0]), Bus: uint8(numbers[1]), Device: uint8(numbers[2]), Function: uint8(numbers[3]),
	}, info, nil
}

// addressPattern matches the end of a deployable's name in upstream: the
// address of the card or of one of its functions.
var addressPattern = regexp.MustCompile(`[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// deployable converts a deployable. Its device must have been converted before.
func (c *converter) deployable(d deployable) {
	refuse := func(format string, args ...any) { c.refuse("deployables", d.id, d.uuid, format, args...) }

	id, err := uuid.Parse(d.uuid)
	on := c.devices[d.device]

	switch {
	case on == nil:
		refuse("its device %d is not there, or not understood", d.device)
		return
	case err != nil:
		refuse("uuid %q is no UUID", d.uuid)
		return
	case d.parent.Valid || d.root.Valid:
		refuse("it is a part of another deployable (parent_id, root_id), which nothing ever made")
		return
	case !cyborg.IsName(d.name):
		refuse("%.80q cannot be a name", d.name)
		return
	case d.accelerators < 0:
		refuse("num_accelerators is %d", d.accelerators)
		return
	}

	// The UUID of the resource provider is derived from the name, as in upstream,
	// unless the row has one.
	provider := cyborg.ProviderUUID(d.name)
	if d.provider.Valid {
		if provider, err = uuid.Parse(d.provider.String); err != nil {
			refuse("rp_uuid %q is no UUID", d.provider.String)
			return
		}
	} else {
		c.note("deployables", d.id, d.uuid, "it has no rp_uuid; its resource provider will be %s, as OpenStack Cyborg would have made it", provider)
	}

	out := db.AdoptedDeployable{
		UUID: id, Device: on.UUID, Host: on.Host, Name: d.name, LocalName: addressPattern.FindString(d.name), ProviderUUID: provider,
		Specs: cyborg.Specs{
			Num: int(d.accelerators), DeviceType: on.Type, Capability: cyborg.JSONObject{}, VendorID: on.VendorID, ProductID: on.ProductID,
		},
		Attributes: []cyborg.Attribute{}, Set: []db.AdoptedAttribute{}, BitstreamID: d.bitstream.String, ProgramSet: on.Identity,
		CreatedAt: when(d.stamps),
	}

	// The local name is the PCI address if the name ends with one. A report with
	// another local name finds the deployable by its handles.
	if out.LocalName == "" {
		out.LocalName = d.name
	}

	if c.statuses[d.device] == "maintaining" {
		out.Maintaining = "disabled in OpenStack Cyborg"
	}

	c.deployables[d.id] = len(c.adoption.Deployables)
	c.adoption.Deployables = append(c.adoption.Deployables, out)
}

// attribute converts an attribute. Attributes that drivers report and those
// that an operator has set are kept apart.
func (c *converter) attribute(a attribute) {
	at, known := c.deployables[a.deployable]
	id, err := uuid.Parse(a.uuid)

	switch {
	case !known:
		c.refuse("attributes", a.id, a.uuid, "its deployable %d is not there, or not understood", a.deployable)
		return
	case err != nil:
		c.refuse("attributes", a.id, a.uuid, "uuid %q is no UUID", a.uuid)
		return
	}

	// Resource classes and traits come from drivers in upstream. All other
	// attributes were set by an operator.
	deployable := &c.adoption.Deployables[at]
	one := cyborg.Attribute{Key: a.key, Value: a.value}
	if a.key == "rc" || strings.HasPrefix(a.key, "trait") {
		deployable.Attributes = append(deployable.Attributes, one) // until the first report of the agent replaces it
		return
	}

	deployable.Set = append(deployable.Set, db.AdoptedAttribute{Attribute: one, UUID: id, CreatedAt: when(a.stamps)})
}

// handle converts an attach handle. Its control path and its deployable must
// belong to the same device.
func (c *converter) handle(h handle) {
	refuse := func(format string, args ...any) { c.refuse("attach_handles", h.id, h.uuid, format, args...) }

	id, err := uuid.Parse(h.uuid)
	at, known := c.deployables[h.deployable]

	switch {
	case !known:
		refuse("its deployable %d is not there, or not understood", h.deployable)
		return
	case err != nil:
		refuse("uuid %q is no UUID", h.uuid)
		return
	case h.kind != string(cyborg.HandlePCI) && h.kind != string(cyborg.HandleTestPCI):
		refuse("attach_type %q: no driver of this release has such handles", h.kind)
		return
	}

	address, info, err := pciInfo(h.info)
	if err != nil {
		refuse("attach_info is %.200q: %v", h.info, err)
		return
	}

	if path, ok := c.paths[h.controlPath]; !ok || c.devices[path.device] == nil || c.devices[path.device].UUID != c.adoption.Deployables[at].Device {
		refuse("its control path %d is of another device than its deployable %d", h.controlPath, h.deployable)
		return
	}

	// The address is written again in our own form; other members of attach_info
	// stay as they are.
	maps.Copy(info, address.HandleInfo())
	c.handles[h.id] = len(c.adoption.Handles)
	c.adoption.Handles = append(c.adoption.Handles, db.AdoptedHandle{
		UUID: id, Deployable: c.adoption.Deployables[at].UUID, Host: c.adoption.Deployables[at].Host, Kind: cyborg.HandleKind(h.kind),
		Info: info, Identity: address.String(),
	})
}

// noteLeaks notes the handles whose in_use contradicts the accelerator
// requests. The requests decide: a handle is adopted as held only if a bound
// request has it.
func (c *converter) noteLeaks(holders map[int64]arq) {
	for _, h := range c.from.handles {
		_, held := holders[h.id]

		if _, converted := c.handles[h.id]; !converted || held == h.inUse.Bool {
			continue
		}

		if held {
			c.note("attach_handles", h.id, h.uuid, "it is free there, and a bound accelerator request has it; it is adopted as held")
		} else {
			c.note("attach_handles", h.id, h.uuid, "it is in_use there, and no accelerator request has it: it leaked, and is adopted as free")
		}
	}
}

// checkUnique refuses rows that share what must be unique in our records:
// names, resource providers and places of deployables, and the identities of
// handles. Upstream's schema does not ensure that.
func (c *converter) checkUnique() {
	deployables, providers, locals := map[string]uuid.UUID{}, map[uuid.UUID]uuid.UUID{}, map[string]uuid.UUID{}

	for _, row := range c.from.deployables {
		at, ok := c.deployables[row.id]
		if !ok {
			continue
		}

		d := c.adoption.Deployables[at]
		local := d.Host + " " + d.LocalName
		if other, taken := deployables[d.Name]; taken {
			c.refuse("deployables", row.id, row.uuid, "deployable %s has the name %q, too", other, d.Name)
		} else if other, taken := providers[d.ProviderUUID]; taken {
			c.refuse("deployables", row.id, row.uuid, "deployable %s has the resource provider %s, too", other, d.ProviderUUID)
		} else if other, taken := locals[local]; taken {
			c.refuse("deployables", row.id, row.uuid, "deployable %s of host %s ends in %s, too", other, d.Host, d.LocalName)
		}

		deployables[d.Name], providers[d.ProviderUUID], locals[local] = d.UUID, d.UUID, d.UUID
	}

	handles := map[string]uuid.UUID{}
	for _, row := range c.from.handles {
		at, ok := c.handles[row.id]
		if !ok {
			continue
		}
		h := c.adoption.Handles[at]

		key := h.Host + " " + string(h.Kind) + " " + h.Identity
		if other, taken := handles[key]; taken {
			c.refuse("attach_handles", row.id, row.uuid, "handle %s of host %s is %s %s, too", other, h.Host, h.Kind, h.Identity)
		}

		handles[key] = h.UUID
	}
}
