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

// Remark is about one row of the upstream records.
type Remark struct {
	Table string
	Row   int64 // its id
	UUID  string
	Text  string
}

func (r Remark) String() string { return fmt.Sprintf("%s %d (%s): %s", r.Table, r.Row, r.UUID, r.Text) }

// understanding makes our words of the upstream records.
type converter struct {
	from     *upstream
	adoption db.Adoption
	refused  []Remark // what is not understood, and keeps everything from being adopted
	notes    []Remark // what is adopted otherwise than it stands there

	devices     map[int64]*db.AdoptedDevice // by upstream's numbers; nil where refused
	statuses    map[int64]string
	deployables map[int64]int // place in adoption
	handles     map[int64]int
	paths       map[int64]controlPath
	profiles    map[int64]*cyborg.DeviceProfile
}

// understand makes our words of the upstream records. What it refuses is in no adoption.
func convert(from *upstream) *converter {
	u := &converter{
		from: from, devices: map[int64]*db.AdoptedDevice{}, statuses: map[int64]string{}, deployables: map[int64]int{},
		handles: map[int64]int{}, paths: map[int64]controlPath{}, profiles: map[int64]*cyborg.DeviceProfile{},
	}
	for _, p := range from.profiles {
		u.profile(p)
	}
	u.allDevices()
	for _, d := range from.deployables {
		u.deployable(d)
	}
	for _, a := range from.attributes {
		u.attribute(a)
	}
	for _, h := range from.handles {
		u.handle(h)
	}
	holders := map[int64]arq{}
	for _, a := range from.arqs {
		u.arq(a, holders)
	}
	u.leaked(holders)
	u.names()
	return u
}

func (u *converter) refuse(table string, row int64, id, format string, args ...any) {
	u.refused = append(u.refused, Remark{table, row, id, fmt.Sprintf(format, args...)})
}

func (u *converter) note(table string, row int64, id, format string, args ...any) {
	u.notes = append(u.notes, Remark{table, row, id, fmt.Sprintf(format, args...)})
}

// when is the time of a row, which upstream may have left out.
func when(s stamps) time.Time {
	if s.created.Valid {
		return s.created.Time.UTC()
	}
	return time.Now().UTC()
}

func (u *converter) profile(p profile) {
	refuse := func(format string, args ...any) { u.refuse("device_profiles", p.id, p.uuid, format, args...) }
	id, err := uuid.Parse(p.uuid)
	if err != nil {
		refuse("uuid %q is none", p.uuid)
		return
	}
	var content struct {
		Groups []map[string]string `json:"groups"`
	}
	decoder := json.NewDecoder(strings.NewReader(p.json))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil || len(content.Groups) == 0 {
		refuse("profile_json is %.200q, not groups of texts", p.json)
		return
	}
	if !cyborg.IsName(p.name) {
		refuse("the name %.80q cannot be one", p.name)
		return
	}
	out := cyborg.DeviceProfile{UUID: id, Name: p.name, Description: p.description.String, Groups: content.Groups, CreatedAt: when(p.stamps)}
	if p.updated.Valid {
		out.UpdatedAt = p.updated.Time.UTC()
	}
	u.profiles[p.id] = &out
	u.adoption.Profiles = append(u.adoption.Profiles, out)
}

// typesTable are the device types of upstream.
var typesTable = []cyborg.DeviceType{cyborg.DeviceTypeGPU, cyborg.DeviceTypeFPGA, cyborg.DeviceTypeAIChip, cyborg.DeviceTypeQAT, cyborg.DeviceTypeNIC, cyborg.DeviceTypeSSD}

func (u *converter) allDevices() {
	paths := map[int64][]controlPath{}
	for _, c := range u.from.controlPaths {
		paths[c.device] = append(paths[c.device], c)
		u.paths[c.id] = c
	}
	taken := map[string]device{}
	for _, d := range u.from.devices {
		out := u.device(d, paths[d.id])
		if out == nil {
			continue
		}
		place := out.Host + " " + out.Identity
		if other, twice := taken[place]; twice {
			u.refuse("devices", d.id, d.uuid, "host %s has %s twice, also as device %d", out.Host, out.Identity, other.id)
			continue
		}
		taken[place] = d
		u.devices[d.id], u.statuses[d.id] = out, d.status
	}
}

func (u *converter) device(d device, paths []controlPath) *db.AdoptedDevice {
	refuse := func(format string, args ...any) *db.AdoptedDevice {
		u.refuse("devices", d.id, d.uuid, format, args...)
		return nil
	}
	id, err := uuid.Parse(d.uuid)
	switch {
	case err != nil:
		return refuse("uuid %q is none", d.uuid)
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
	address, _, err := pciInfo(paths[0].info)
	if err != nil {
		return refuse("its control path is %.200q: %v", paths[0].info, err)
	}
	out := &db.AdoptedDevice{
		UUID: id, Host: d.hostname, Driver: adopter, Identity: address.String(), Type: cyborg.DeviceType(d.kind),
		VendorID: strings.ToLower(strings.TrimPrefix(d.vendor, "0x")), Vendor: d.vendor, Model: d.model, BoardInfo: cyborg.JSONObject{},
		ControlPathKind: "PCI", ControlPathInfo: address.HandleInfo(), CreatedAt: when(d.stamps),
	}
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
		delete(info, "product_id") // it has its own place, and is shown from there
		maps.Copy(out.BoardInfo, info)
	}
	u.adoption.Devices = append(u.adoption.Devices, *out)
	return out
}

// pciInfo reads an address as upstream writes it, of hexadecimal texts that may lack leading zeros, and gives it back with all
// that stands beside it.
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

// addressPattern is how upstream's names of deployables end: with the address of the card or of a function of it.
var addressPattern = regexp.MustCompile(`[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

func (u *converter) deployable(d deployable) {
	refuse := func(format string, args ...any) { u.refuse("deployables", d.id, d.uuid, format, args...) }
	id, err := uuid.Parse(d.uuid)
	on := u.devices[d.device]
	switch {
	case on == nil:
		refuse("its device %d is not there, or not understood", d.device)
		return
	case err != nil:
		refuse("uuid %q is none", d.uuid)
		return
	case d.parent.Valid || d.root.Valid:
		refuse("it is a part of another deployable (parent_id, root_id), which nothing ever made")
		return
	case !cyborg.IsName(d.name):
		refuse("the name %.80q cannot be one", d.name)
		return
	case d.accelerators < 0:
		refuse("num_accelerators is %d", d.accelerators)
		return
	}
	provider := cyborg.ProviderUUID(d.name)
	if d.provider.Valid {
		if provider, err = uuid.Parse(d.provider.String); err != nil {
			refuse("rp_uuid %q is no UUID", d.provider.String)
			return
		}
	} else {
		u.note("deployables", d.id, d.uuid, "it has no rp_uuid; its resource provider will be %s, as OpenStack Cyborg would have made it", provider)
	}
	out := db.AdoptedDeployable{
		UUID: id, Device: on.UUID, Host: on.Host, Name: d.name, LocalName: addressPattern.FindString(d.name), ProviderUUID: provider,
		Specs: cyborg.Specs{
			Num: int(d.accelerators), DeviceType: on.Type, Capability: cyborg.JSONObject{}, VendorID: on.VendorID, ProductID: on.ProductID,
		},
		Attributes: []cyborg.Attribute{}, Set: []db.AdoptedAttribute{}, BitstreamID: d.bitstream.String, ProgramSet: on.Identity,
		CreatedAt: when(d.stamps),
	}
	if out.LocalName == "" {
		out.LocalName = d.name
	}
	if u.statuses[d.device] == "maintaining" {
		out.Maintaining = "disabled in OpenStack Cyborg"
	}
	u.deployables[d.id] = len(u.adoption.Deployables)
	u.adoption.Deployables = append(u.adoption.Deployables, out)
}

func (u *converter) attribute(a attribute) {
	at, known := u.deployables[a.deployable]
	id, err := uuid.Parse(a.uuid)
	switch {
	case !known:
		u.refuse("attributes", a.id, a.uuid, "its deployable %d is not there, or not understood", a.deployable)
		return
	case err != nil:
		u.refuse("attributes", a.id, a.uuid, "uuid %q is none", a.uuid)
		return
	}
	deployable := &u.adoption.Deployables[at]
	one := cyborg.Attribute{Key: a.key, Value: a.value}
	if a.key == "rc" || strings.HasPrefix(a.key, "trait") {
		deployable.Attributes = append(deployable.Attributes, one) // what drivers report; their reports replace it
		return
	}
	deployable.Set = append(deployable.Set, db.AdoptedAttribute{Attribute: one, UUID: id, CreatedAt: when(a.stamps)})
}

func (u *converter) handle(h handle) {
	refuse := func(format string, args ...any) { u.refuse("attach_handles", h.id, h.uuid, format, args...) }
	id, err := uuid.Parse(h.uuid)
	at, known := u.deployables[h.deployable]
	switch {
	case !known:
		refuse("its deployable %d is not there, or not understood", h.deployable)
		return
	case err != nil:
		refuse("uuid %q is none", h.uuid)
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
	if path, ok := u.paths[h.controlPath]; !ok || u.devices[path.device] == nil || u.devices[path.device].UUID != u.adoption.Deployables[at].Device {
		refuse("its control path %d is of another device than its deployable %d", h.controlPath, h.deployable)
		return
	}
	maps.Copy(info, address.HandleInfo())
	u.handles[h.id] = len(u.adoption.Handles)
	u.adoption.Handles = append(u.adoption.Handles, db.AdoptedHandle{
		UUID: id, Deployable: u.adoption.Deployables[at].UUID, Host: u.adoption.Deployables[at].Host, Kind: cyborg.HandleKind(h.kind),
		Info: info, Identity: address.String(),
	})
}

// leaked tells of handles that upstream has given to nobody it knows.
func (u *converter) leaked(holders map[int64]arq) {
	for _, h := range u.from.handles {
		_, held := holders[h.id]
		if _, understood := u.handles[h.id]; !understood || held == h.inUse.Bool {
			continue
		}
		if held {
			u.note("attach_handles", h.id, h.uuid, "it is free there, and a bound accelerator request has it; it is adopted as held")
		} else {
			u.note("attach_handles", h.id, h.uuid, "it is in_use there, and no accelerator request has it: it leaked, and is adopted as free")
		}
	}
}

// names refuses what two rows share and ours cannot.
func (u *converter) names() {
	deployables, providers, locals := map[string]uuid.UUID{}, map[uuid.UUID]uuid.UUID{}, map[string]uuid.UUID{}
	for _, row := range u.from.deployables {
		at, ok := u.deployables[row.id]
		if !ok {
			continue
		}
		d := u.adoption.Deployables[at]
		local := d.Host + " " + d.LocalName
		if other, taken := deployables[d.Name]; taken {
			u.refuse("deployables", row.id, row.uuid, "deployable %s has the name %q, too", other, d.Name)
		} else if other, taken := providers[d.ProviderUUID]; taken {
			u.refuse("deployables", row.id, row.uuid, "deployable %s has the resource provider %s, too", other, d.ProviderUUID)
		} else if other, taken := locals[local]; taken {
			u.refuse("deployables", row.id, row.uuid, "deployable %s of host %s ends in %s, too", other, d.Host, d.LocalName)
		}
		deployables[d.Name], providers[d.ProviderUUID], locals[local] = d.UUID, d.UUID, d.UUID
	}
	handles := map[string]uuid.UUID{}
	for _, row := range u.from.handles {
		at, ok := u.handles[row.id]
		if !ok {
			continue
		}
		h := u.adoption.Handles[at]
		key := h.Host + " " + string(h.Kind) + " " + h.Identity
		if other, taken := handles[key]; taken {
			u.refuse("attach_handles", row.id, row.uuid, "handle %s of host %s is %s %s, too", other, h.Host, h.Kind, h.Identity)
		}
		handles[key] = h.UUID
	}
}
