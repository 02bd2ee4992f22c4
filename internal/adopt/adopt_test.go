package adopt_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/adopt"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// ours is the database that the records are adopted into.
type ours struct {
	*db.Store
	url string
}

// newOurs returns an empty database of our own.
func newOurs(t *testing.T) *ours {
	t.Helper()
	url := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	store, err := db.Open(t.Context(), url, db.Options{MaxConns: 5}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return &ours{store, url}
}

// adopt adopts from the cloud, or only rehearses it.
func (o *ours) adopt(t *testing.T, from *cloud, apply bool) adopt.Report {
	t.Helper()
	report, err := adopt.Run(t.Context(), from.url, o.Store, apply, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return report
}

// count says how many hosts, devices, accelerators and handles there are.
func (o *ours) count(t *testing.T) string {
	t.Helper()
	hosts, err := o.Hosts(t.Context(), db.Page{Limit: 1000})
	require.NoError(t, err)

	devices, err := o.Devices(t.Context(), db.DeviceFilter{}, db.Page{Limit: 1000})
	require.NoError(t, err)

	accelerators, err := o.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{Limit: 1000})
	require.NoError(t, err)

	handles := 0
	for _, a := range accelerators {
		handles += len(a.Handles)
	}

	return fmt.Sprintf("%d hosts, %d devices, %d accelerators, %d handles", len(hosts), len(devices), len(accelerators), handles)
}

// texts returns the remarks, one a line.
func texts(remarks []adopt.Remark) string {
	var lines []string
	for _, r := range remarks {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

// TestAdopt: the records of an OpenStack Cyborg become ours with their UUIDs,
// resource providers, names and holders. A rehearsal changes nothing, and
// adopting again finds everything adopted already.
func TestAdopt(t *testing.T) {
	t.Parallel()
	for name, start := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, o := start(t).load(t, "cloud.sql"), newOurs(t)

			want := map[db.AdoptionKind]db.AdoptionCount{
				db.AdoptProfile: {New: 2}, db.AdoptDevice: {New: 2}, db.AdoptDeployable: {New: 2}, db.AdoptHandle: {New: 4}, db.AdoptARQ: {New: 4},
			}

			rehearsal := o.adopt(t, from, false)
			require.NoError(t, rehearsal.Refusal(), texts(rehearsal.Refused))
			require.Equal(t, want, rehearsal.Adopted.Counts)
			require.False(t, rehearsal.Applied)
			require.Equal(t, "0 hosts, 0 devices, 0 accelerators, 0 handles", o.count(t), "it was a rehearsal")

			done := o.adopt(t, from, true)
			require.True(t, done.Applied, texts(done.Refused))
			require.Equal(t, want, done.Adopted.Counts)
			require.Equal(t, "2 hosts, 2 devices, 2 accelerators, 4 handles", o.count(t))
			require.Contains(t, texts(done.Notes), "attach_handles 3 (f0000000-0000-4000-8000-000000000003): it is in_use there, and no accelerator request has it")
			require.Contains(t, texts(done.Notes), "deployables 2 (e0000000-0000-4000-8000-000000000002): it has no rp_uuid")
			require.Contains(t, texts(done.Notes), "it is BindStarted, and nobody works on it any more")
			require.Len(t, done.Notes, 3)
			requireAdopted(t, o)

			hosts, err := o.Hosts(t.Context(), db.Page{Limit: 10})
			require.NoError(t, err)
			require.True(t, hosts[0].Silent)
			require.Zero(t, hosts[0].LastSeen, "nobody has heard its agent")

			again := o.adopt(t, from, true)
			for kind, count := range want {
				require.Equal(t, db.AdoptionCount{Already: count.New}, again.Adopted.Counts[kind], kind)
			}
			requireAdopted(t, o)

			_, err = o.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{uuid.MustParse("20000000-0000-4000-8000-000000000002")}}, cyborg.Actor{Name: "test"})
			require.NoError(t, err)

			again = o.adopt(t, from, true)
			require.Equal(t, db.AdoptionCount{Already: 4}, again.Adopted.Counts[db.AdoptARQ])
			_, err = o.ARQ(t.Context(), uuid.MustParse("20000000-0000-4000-8000-000000000002"))
			require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "a request that was deleted here does not come back")
		})
	}
}

// requireAdopted requires that the records hold what cloud.sql has.
func requireAdopted(t *testing.T, o *ours) {
	t.Helper()
	card, err := o.Accelerator(t.Context(), uuid.MustParse("e0000000-0000-4000-8000-000000000001"))
	require.NoError(t, err)
	require.Equal(t, "compute1_FakeDevice", card.Name)
	require.Equal(t, "compute1_FakeDevice", card.ProviderName)
	require.Equal(t, uuid.MustParse("7c1a9f9e-0b6e-3a34-9d0f-0123456789ab"), card.ProviderUUID)
	require.Equal(t, uuid.MustParse("d0000000-0000-4000-8000-000000000001"), card.DeviceUUID)
	require.Equal(t, "compute1.example.org", card.Host)
	require.Equal(t, cyborg.LifecycleReady, card.Lifecycle, "OpenStack Cyborg has everything in service")
	require.Equal(t, cyborg.StatusReady, card.Status())
	require.Equal(t, 3, card.Specs.Num)
	require.Equal(t, "abcd", card.Specs.VendorID)
	require.Equal(t, "b069d97a-010a-4057-b70d-eca2b337fc9c", card.BitstreamID)

	device, err := o.Device(t.Context(), card.DeviceUUID)
	require.NoError(t, err)
	require.NotEmpty(t, device.ProductID)
	require.NotContains(t, device.BoardInfo, "product_id", "the product ID has a field of its own")
	require.Equal(t, []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "traits1", Value: "CUSTOM_FAKE_DEVICE"}, {Key: "rack", Value: "b7"}}, card.Attributes)

	set, err := o.Attribute(t.Context(), uuid.MustParse("a0000000-0000-4000-8000-000000000003"))
	require.NoError(t, err)
	require.Equal(t, cyborg.Attribute{Key: "rack", Value: "b7"}, set.Attribute, "an attribute that somebody set keeps its UUID")

	require.Equal(t, time.Date(2025, 3, 1, 10, 0, 0, 0, time.UTC), card.CreatedAt)
	require.Len(t, card.Handles, 3)

	held := card.Handles[0]
	require.Equal(t, uuid.MustParse("f0000000-0000-4000-8000-000000000001"), held.UUID)
	require.Equal(t, &cyborg.Holder{Kind: cyborg.HolderInstance, ID: "30000000-0000-4000-8000-000000000001"}, held.Holder)
	require.Equal(t, "0000:0c:00.1", held.Identity)
	require.Equal(t, map[string]string{"domain": "0000", "bus": "0c", "device": "00", "function": "1"}, held.Info)
	require.Equal(t, time.Date(2025, 3, 3, 12, 0, 0, 0, time.UTC), held.AttachedAt)
	require.Nil(t, card.Handles[1].Holder)
	require.Nil(t, card.Handles[2].Holder, "no request holds it, so it is free here")

	bound, err := o.ARQ(t.Context(), uuid.MustParse("20000000-0000-4000-8000-000000000001"))
	require.NoError(t, err)
	require.Equal(t, cyborg.ARQBound, bound.State)
	require.Equal(t, "c1ba1e0d0e1b4c7f8f8d1c0b7a6f5e4d", bound.Project)
	require.Equal(t, "fpga-aes", bound.Profile)
	require.Equal(t, 1, bound.GroupIndex)
	require.Equal(t, map[string]string{"resources:FPGA": "1"}, bound.Group, "the request has its own copy of the group")
	require.Equal(t, "compute1.example.org", bound.Host)
	require.Equal(t, card.ProviderUUID, bound.ProviderUUID)
	require.Equal(t, *held.Holder, bound.Holder())
	require.Equal(t, held.UUID, bound.Handle.UUID)
	require.Equal(t, held.Operation, bound.Operation)
	for id, state := range map[string]cyborg.ARQState{"2": cyborg.ARQInitial, "3": cyborg.ARQBindFailed, "4": cyborg.ARQUnbound} {
		request, err := o.ARQ(t.Context(), uuid.MustParse("20000000-0000-4000-8000-00000000000"+id))
		require.NoError(t, err)
		require.Equal(t, state, request.State)
		require.Nil(t, request.Handle)
		require.Equal(t, state == cyborg.ARQBindFailed, request.Reason != "")
	}

	gpu, err := o.Accelerator(t.Context(), uuid.MustParse("e0000000-0000-4000-8000-000000000002"))
	require.NoError(t, err)
	require.Equal(t, cyborg.ProviderUUID("compute2_0000:3b:00.0"), gpu.ProviderUUID)
	require.Equal(t, cyborg.AdministrationMaintaining, gpu.Admin)
	require.Equal(t, "disabled in OpenStack Cyborg", gpu.Maintenance.Reason)
	require.Equal(t, "physnet1", gpu.Handles[0].Info["physical_network"])
}

// TestAdoptRefuses: if a single row is not understood, nothing is adopted, and
// the report names the row.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		"UPDATE devices SET uuid = 'x' WHERE id = 1":                                                                 "devices 1 (x): uuid \"x\" is no UUID",
		"UPDATE devices SET hostname = 'no host' WHERE id = 2":                                                       "devices 2 (d0000000-0000-4000-8000-000000000002): hostname \"no host\" is no name",
		"UPDATE devices SET std_board_info = '[1]' WHERE id = 1":                                                     "std_board_info is \"[1]\"",
		"UPDATE devices SET std_board_info = '{\"product_id\": 5}' WHERE id = 1":                                     "product_id is 5, no text",
		"UPDATE controlpath_ids SET cpid_info = '{\"bus\": \"zz\"}' WHERE id = 1":                                    "its control path is",
		"UPDATE controlpath_ids SET device_id = 2 WHERE id = 1":                                                      "devices 1 (d0000000-0000-4000-8000-000000000001): it has 0 control paths",
		"UPDATE deployables SET parent_id = 1 WHERE id = 2":                                                          "deployables 2 (e0000000-0000-4000-8000-000000000002): it is a part of another",
		"UPDATE deployables SET rp_uuid = 'x' WHERE id = 1":                                                          "rp_uuid \"x\" is no UUID",
		"UPDATE deployables SET name = 'compute1_FakeDevice' WHERE id = 2":                                           "has the name \"compute1_FakeDevice\", too",
		"UPDATE deployables SET rp_uuid = '7c1a9f9e-0b6e-3a34-9d0f-0123456789ab' WHERE id = 2":                       "has the resource provider 7c1a9f9e",
		"UPDATE deployables SET num_accelerators = -1 WHERE id = 1":                                                  "num_accelerators is -1",
		"UPDATE attach_handles SET attach_type = 'MDEV' WHERE id = 2":                                                "attach_handles 2 (f0000000-0000-4000-8000-000000000002): attach_type \"MDEV\"",
		"UPDATE attach_handles SET attach_info = '{}' WHERE id = 2":                                                  "attach_info is \"{}\": domain is \"\"",
		"UPDATE attach_handles SET cpid_id = 2 WHERE id = 2":                                                         "its control path 2 is of another device",
		"UPDATE attach_handles SET attach_info = (SELECT attach_info FROM attach_handles WHERE id = 1) WHERE id = 2": "is TEST_PCI 0000:0c:00.1, too",
		"UPDATE device_profiles SET profile_json = '{\"groups\": [], \"x\": 1}' WHERE id = 2":                        "device_profiles 2 (10000000-0000-4000-8000-000000000002): profile_json is",
		"UPDATE extended_accelerator_requests SET device_profile_group_id = 7 WHERE id = 2":                          "none with number 7",
		"UPDATE extended_accelerator_requests SET attach_handle_id = NULL WHERE id = 1":                              "it is Bound and has no attach handle",
		"UPDATE extended_accelerator_requests SET instance_uuid = NULL WHERE id = 1":                                 "it is Bound and has no instance_uuid",
		"UPDATE extended_accelerator_requests SET instance_uuid = 'x' WHERE id = 1":                                  "instance_uuid \"x\" is no UUID",
		"UPDATE extended_accelerator_requests SET hostname = 'compute2.example.org' WHERE id = 1":                    "its attach handle is on \"compute1.example.org\"",
		"UPDATE extended_accelerator_requests SET deployable_id = 2 WHERE id = 1":                                    "its deployable 2 is not the deployable of its attach handle",
		"UPDATE extended_accelerator_requests SET state = 'Bound', attach_handle_id = 1 WHERE id = 3":                "the handle was given out twice",
	} {
		broken := newPostgreSQL(t).load(t, "cloud.sql").exec(t, statement)
		o := newOurs(t)

		report := o.adopt(t, broken, true)
		require.Contains(t, texts(report.Refused), want, statement)
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(report.Refusal()))
		require.False(t, report.Applied)
		require.Equal(t, "0 hosts, 0 devices, 0 accelerators, 0 handles", o.count(t), statement)
	}
}

// TestAdoptRequiresTheKnownSchema: any other schema is refused, and the error
// says what differs.
func TestAdoptRequiresTheKnownSchema(t *testing.T) {
	t.Parallel()
	for name, start := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOurs(t)

			for statement, want := range map[string]string{
				"UPDATE alembic_version SET version_num = '60d8ac91fd20'": "has version 60d8ac91fd20",
				"ALTER TABLE devices ADD COLUMN serial varchar(10)":       "devices has created_at hostname id model serial",
				"ALTER TABLE attach_handles DROP COLUMN in_use":           "attach_handles has",
				"DROP TABLE alembic_version":                              "it has no table alembic_version",
				"DELETE FROM alembic_version":                             "version of the schema of --from cannot be read",
			} {
				from := start(t).exec(t, statement)
				_, err := adopt.Run(t.Context(), from.url, o.Store, true, slog.New(slog.DiscardHandler))
				require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), statement)
				require.ErrorContains(t, err, want, statement)
			}
		})
	}
}

// TestMissingDatabase: the server answers, so the URL is wrong and trying again
// later would not help.
func TestMissingDatabase(t *testing.T) {
	t.Parallel()
	for name, start := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, err := url.Parse(start(t).url)
			require.NoError(t, err)
			from.Path = "/nowhere"

			_, err = adopt.Run(t.Context(), from.String(), nil, false, slog.New(slog.DiscardHandler))
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
			require.ErrorContains(t, err, "nowhere")
			require.Contains(t, cyborg.AsError(err).Hint, "cyborg.conf")
		})
	}
}

// TestURLs: a URL that cannot work is refused before anything connects, and no
// error shows the password.
func TestURLs(t *testing.T) {
	t.Parallel()
	for url, kind := range map[string]cyborg.ErrorKind{
		"": cyborg.ErrInvalid, "cyborg": cyborg.ErrInvalid, "sqlite:////var/lib/cyborg.sqlite": cyborg.ErrInvalid, "oracle://h/x": cyborg.ErrInvalid,
		"mysql://root:geheim@127.0.0.1:1/cyborg":                      cyborg.ErrUnavailable,
		"mysql+pymysql://root:geheim@127.0.0.1:1/cyborg?charset=utf8": cyborg.ErrUnavailable,
		"mysql://root:geheim@127.0.0.1:1/cyborg?local_infile=1":       cyborg.ErrInvalid,
		"mysql://root:geheim@127.0.0.1:1/cyborg?ssl_ca=/nowhere":      cyborg.ErrInvalid,
		"postgresql://root:geheim@127.0.0.1:1/cyborg":                 cyborg.ErrUnavailable,
		"postgresql+psycopg2://root:geheim@127.0.0.1:x/cyborg":        cyborg.ErrInvalid,
		"postgresql://root:geheim@127.0.0.1:1/cyborg?sslmode=never":   cyborg.ErrInvalid,
	} {
		_, err := adopt.Run(t.Context(), url, nil, true, slog.New(slog.DiscardHandler))
		require.Equal(t, kind, cyborg.ErrorKindOf(err), "%s: %v", url, err)
		require.NotContains(t, err.Error()+cyborg.AsError(err).Hint, "geheim", url)
	}
}
