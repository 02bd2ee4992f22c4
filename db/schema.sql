-- What the migrations make, to look things up and to see what one changes. To be read: nothing runs it.
-- Written by go test ./db -run TestSchema -update.

CREATE TABLE adopted_rows (
    kind text NOT NULL,
    uuid uuid NOT NULL,
    adopted_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT adopted_rows_pkey PRIMARY KEY (kind, uuid),
    CONSTRAINT adopted_rows_kind_check CHECK (kind = ANY (ARRAY['device_profile'::text, 'device'::text, 'deployable'::text, 'attach_handle'::text, 'accelerator_request'::text]))
);

CREATE TABLE arqs (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'Initial'::text,
    reason text NOT NULL DEFAULT ''::text,
    project text,
    profile_uuid uuid NOT NULL,
    profile_name text NOT NULL,
    group_index integer NOT NULL,
    profile_group jsonb NOT NULL,
    host text,
    provider_uuid uuid,
    instance_uuid uuid,
    service text,
    operation_id uuid,
    handle_uuid uuid,
    seen_at timestamp with time zone NOT NULL DEFAULT now(),
    claimed_by uuid,
    claim_open boolean GENERATED ALWAYS AS (CASE WHEN claimed_by IS NOT NULL THEN true ELSE NULL::boolean END) STORED,
    lost_boot text,
    lost_at timestamp with time zone,
    hard_reboot text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone,
    bound_boot text,
    bound_uptime interval,
    CONSTRAINT arqs_pkey PRIMARY KEY (uuid),
    CONSTRAINT arqs_handle_uuid_key UNIQUE (handle_uuid),
    CONSTRAINT arqs_id_key UNIQUE (id),
    CONSTRAINT arqs_claim_fkey FOREIGN KEY (claimed_by, claim_open) REFERENCES operations(id, open),
    CONSTRAINT arqs_handle_fkey FOREIGN KEY (handle_uuid, operation_id) REFERENCES attach_handles(uuid, operation_id),
    CONSTRAINT arqs_profile_uuid_fkey FOREIGN KEY (profile_uuid) REFERENCES device_profiles(uuid),
    CONSTRAINT arqs_bound_check CHECK (state <> 'Bound'::text OR handle_uuid IS NOT NULL),
    CONSTRAINT arqs_claim_check CHECK (claimed_by IS NOT NULL OR (state <> ALL (ARRAY['BindStarted'::text, 'Deleting'::text]))),
    CONSTRAINT arqs_failed_check CHECK (state <> 'BindFailed'::text OR handle_uuid IS NULL OR claimed_by IS NOT NULL),
    CONSTRAINT arqs_free_check CHECK ((state <> ALL (ARRAY['Initial'::text, 'Unbound'::text])) OR num_nonnulls(host, provider_uuid, instance_uuid, service, operation_id, handle_uuid) = 0),
    CONSTRAINT arqs_group_index_check CHECK (group_index >= 0),
    CONSTRAINT arqs_handle_check CHECK (handle_uuid IS NULL OR operation_id IS NOT NULL AND num_nonnulls(instance_uuid, service) = 1),
    CONSTRAINT arqs_lost_check CHECK ((lost_at IS NULL) = (lost_boot IS NULL) AND (lost_at IS NULL OR instance_uuid IS NOT NULL AND handle_uuid IS NOT NULL)),
    CONSTRAINT arqs_reason_check CHECK ((state = ANY (ARRAY['BindFailed'::text, 'UnbindFailed'::text])) = (reason <> ''::text)),
    CONSTRAINT arqs_service_check CHECK (service <> ''::text),
    CONSTRAINT arqs_state_check CHECK (state = ANY (ARRAY['Initial'::text, 'BindStarted'::text, 'Bound'::text, 'BindFailed'::text, 'Unbound'::text, 'UnbindFailed'::text, 'Deleting'::text]))
);
CREATE INDEX arqs_bound ON arqs USING btree (seen_at) WHERE state = 'Bound'::text;
CREATE INDEX arqs_by_host ON arqs USING btree (host, id) WHERE host IS NOT NULL;
CREATE INDEX arqs_by_instance ON arqs USING btree (instance_uuid);
CREATE INDEX arqs_by_profile ON arqs USING btree (profile_uuid);
CREATE INDEX arqs_by_project ON arqs USING btree (project, id);
CREATE INDEX arqs_by_state ON arqs USING btree (state, id) WHERE state <> 'Bound'::text;
CREATE INDEX arqs_claimed ON arqs USING btree (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX arqs_lost ON arqs USING btree (host) WHERE lost_at IS NOT NULL;
CREATE INDEX arqs_unbound ON arqs USING btree (project) WHERE state <> 'Bound'::text;
CREATE TRIGGER arqs_deleted AFTER DELETE ON arqs REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_deleted();
CREATE TRIGGER arqs_inserted AFTER INSERT ON arqs REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_inserted();
CREATE TRIGGER arqs_updated AFTER UPDATE ON arqs REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_updated();
CREATE TRIGGER note_update BEFORE UPDATE OF state, project ON arqs FOR EACH ROW EXECUTE FUNCTION note_update();

CREATE TABLE attach_handles (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid uuid NOT NULL,
    deployable_uuid uuid NOT NULL,
    host text NOT NULL,
    kind text NOT NULL,
    identity text NOT NULL,
    info jsonb NOT NULL,
    presence text NOT NULL DEFAULT 'present'::text,
    missing_since timestamp with time zone,
    holder_kind text,
    holder_id text,
    operation_id uuid,
    attached_at timestamp with time zone,
    unconfirmed_kind text,
    unconfirmed_id text,
    unconfirmed_operation uuid,
    undone_reason text,
    undone_at timestamp with time zone,
    companions text[] NOT NULL DEFAULT '{}'::text[],
    prepared boolean NOT NULL DEFAULT false,
    parameters jsonb NOT NULL DEFAULT '{}'::jsonb,
    clean text NOT NULL DEFAULT ''::text,
    unclean text NOT NULL DEFAULT ''::text,
    unclean_since timestamp with time zone,
    cleaned jsonb,
    CONSTRAINT attach_handles_pkey PRIMARY KEY (uuid),
    CONSTRAINT attach_handles_host_kind_identity_key UNIQUE (host, kind, identity),
    CONSTRAINT attach_handles_id_key UNIQUE (id),
    CONSTRAINT attach_handles_taken UNIQUE (uuid, operation_id),
    CONSTRAINT attach_handles_deployable_uuid_host_fkey FOREIGN KEY (deployable_uuid, host) REFERENCES deployables(uuid, host),
    CONSTRAINT attach_handles_attached_is_held CHECK (attached_at IS NULL OR holder_kind IS NOT NULL),
    CONSTRAINT attach_handles_clean_after_holder CHECK (clean = ''::text OR holder_kind IS NOT NULL),
    CONSTRAINT attach_handles_clean_check CHECK (clean = ANY (ARRAY[''::text, 'reset'::text, 'scrub'::text])),
    CONSTRAINT attach_handles_cleaned_check CHECK (jsonb_typeof(cleaned) = 'object'::text),
    CONSTRAINT attach_handles_holder_has_operation CHECK ((holder_kind IS NULL) = (operation_id IS NULL)),
    CONSTRAINT attach_handles_holder_id_check CHECK (holder_id <> ''::text),
    CONSTRAINT attach_handles_holder_kind_check CHECK (holder_kind = ANY (ARRAY['instance'::text, 'host'::text, 'service'::text])),
    CONSTRAINT attach_handles_identity_check CHECK (identity <> ''::text),
    CONSTRAINT attach_handles_kind_check CHECK (kind <> ''::text),
    CONSTRAINT attach_handles_missing_since CHECK ((presence = 'missing'::text) = (missing_since IS NOT NULL)),
    CONSTRAINT attach_handles_parameters_check CHECK (jsonb_typeof(parameters) = 'object'::text),
    CONSTRAINT attach_handles_presence_check CHECK (presence = ANY (ARRAY['present'::text, 'missing'::text])),
    CONSTRAINT attach_handles_unclean_check CHECK (unclean = ANY (ARRAY[''::text, 'reset'::text, 'scrub'::text])),
    CONSTRAINT attach_handles_unclean_has_time CHECK ((unclean = ''::text) = (unclean_since IS NULL)),
    CONSTRAINT attach_handles_unclean_is_free CHECK (unclean = ''::text OR holder_kind IS NULL),
    CONSTRAINT attach_handles_unconfirmed_id_check CHECK (unconfirmed_id <> ''::text),
    CONSTRAINT attach_handles_unconfirmed_kind_check CHECK (unconfirmed_kind = ANY (ARRAY['instance'::text, 'host'::text, 'service'::text])),
    CONSTRAINT attach_handles_unconfirmed_or_held CHECK (unconfirmed_kind IS NULL OR holder_kind IS NULL),
    CONSTRAINT attach_handles_undone_has_reason CHECK ((undone_reason IS NULL) = (undone_at IS NULL)),
    CONSTRAINT attach_handles_undone_reason_check CHECK (undone_reason <> ''::text),
    CONSTRAINT attach_handles_undone_was_attached CHECK (undone_reason IS NULL OR attached_at IS NOT NULL),
    CONSTRAINT attach_handles_whole_holder CHECK ((holder_kind IS NULL) = (holder_id IS NULL)),
    CONSTRAINT attach_handles_whole_unconfirmed CHECK (num_nulls(unconfirmed_kind, unconfirmed_id, unconfirmed_operation) = ANY (ARRAY[0, 3]))
);
CREATE INDEX attach_handles_by_deployable ON attach_handles USING btree (deployable_uuid);
CREATE INDEX attach_handles_by_holder ON attach_handles USING btree (holder_kind, holder_id) WHERE holder_kind IS NOT NULL;
CREATE INDEX attach_handles_missing ON attach_handles USING btree (missing_since) WHERE presence = 'missing'::text;
CREATE INDEX attach_handles_prepared ON attach_handles USING btree (host) WHERE prepared;
CREATE INDEX attach_handles_unclean ON attach_handles USING btree (host) WHERE unclean <> ''::text;
CREATE INDEX attach_handles_unconfirmed ON attach_handles USING btree (host) WHERE unconfirmed_kind IS NOT NULL;
CREATE INDEX attach_handles_undone ON attach_handles USING btree (host) WHERE undone_at IS NOT NULL;
CREATE TRIGGER attach_handles_deleted AFTER DELETE ON attach_handles REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_added_or_removed();
CREATE TRIGGER attach_handles_doubted BEFORE UPDATE ON attach_handles FOR EACH ROW WHEN (old.holder_kind IS NULL AND old.unconfirmed_kind IS NULL AND new.unconfirmed_kind IS NOT NULL) EXECUTE FUNCTION attach_handles_doubted();
CREATE TRIGGER attach_handles_forgotten AFTER DELETE ON attach_handles FOR EACH ROW WHEN (old.unclean <> ''::text) EXECUTE FUNCTION attach_handles_forgotten();
CREATE TRIGGER attach_handles_freed BEFORE UPDATE ON attach_handles FOR EACH ROW WHEN (new.holder_kind IS NULL AND new.unconfirmed_kind IS NULL AND (new.prepared OR new.parameters <> '{}'::jsonb)) EXECUTE FUNCTION attach_handles_freed();
CREATE TRIGGER attach_handles_given BEFORE UPDATE OF holder_kind, holder_id ON attach_handles FOR EACH ROW WHEN (new.holder_kind IS NOT NULL AND (old.holder_kind IS DISTINCT FROM new.holder_kind OR old.holder_id IS DISTINCT FROM new.holder_id)) EXECUTE FUNCTION attach_handles_given();
CREATE TRIGGER attach_handles_inserted AFTER INSERT ON attach_handles REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_added_or_removed();
CREATE TRIGGER attach_handles_left BEFORE UPDATE ON attach_handles FOR EACH ROW WHEN (old.holder_kind IS NOT NULL AND new.holder_kind IS NULL) EXECUTE FUNCTION attach_handles_left();
CREATE TRIGGER attach_handles_released BEFORE UPDATE ON attach_handles FOR EACH ROW WHEN (old.undone_at IS NOT NULL AND new.attached_at IS NULL) EXECUTE FUNCTION attach_handles_released();
CREATE TRIGGER attach_handles_shown_again BEFORE INSERT ON attach_handles FOR EACH ROW WHEN (new.holder_kind IS NULL) EXECUTE FUNCTION attach_handles_shown_again();
CREATE TRIGGER attach_handles_updated AFTER UPDATE ON attach_handles REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_updated();
CREATE TRIGGER placement_unclean AFTER UPDATE ON attach_handles FOR EACH ROW WHEN ((old.unclean = ''::text) <> (new.unclean = ''::text)) EXECUTE FUNCTION placement_unclean_changed();
CREATE TRIGGER placement_updated AFTER UPDATE ON attach_handles REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_handles_changed();

CREATE TABLE backends (
    host text NOT NULL,
    name text NOT NULL,
    driver text NOT NULL,
    options jsonb NOT NULL DEFAULT '{}'::jsonb,
    services text[] NOT NULL DEFAULT '{}'::text[],
    reported boolean NOT NULL DEFAULT true,
    state text NOT NULL,
    error text NOT NULL DEFAULT ''::text,
    CONSTRAINT backends_pkey PRIMARY KEY (host, name),
    CONSTRAINT backends_host_fkey FOREIGN KEY (host) REFERENCES hosts(name),
    CONSTRAINT backends_disabled_has_none CHECK (state <> 'disabled'::text OR error = ''::text),
    CONSTRAINT backends_driver_check CHECK (driver <> ''::text),
    CONSTRAINT backends_failed_has_error CHECK (state <> 'failed'::text OR error <> ''::text),
    CONSTRAINT backends_name_check CHECK (name <> ''::text),
    CONSTRAINT backends_state_check CHECK (state = ANY (ARRAY['ok'::text, 'failed'::text, 'disabled'::text])),
    CONSTRAINT backends_unreported_is_disabled CHECK (reported OR state = 'disabled'::text)
);
CREATE TRIGGER backends_deleted AFTER DELETE ON backends REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION backends_added_or_removed();
CREATE TRIGGER backends_inserted AFTER INSERT ON backends REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION backends_added_or_removed();
CREATE TRIGGER backends_updated AFTER UPDATE ON backends REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION backends_updated();

CREATE TABLE claims (
    deployable_uuid uuid NOT NULL,
    operation_id uuid NOT NULL,
    operation_open boolean NOT NULL DEFAULT true,
    claimed_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT claims_pkey PRIMARY KEY (deployable_uuid),
    CONSTRAINT claims_deployable_uuid_fkey FOREIGN KEY (deployable_uuid) REFERENCES deployables(uuid),
    CONSTRAINT claims_operation_id_operation_open_fkey FOREIGN KEY (operation_id, operation_open) REFERENCES operations(id, open),
    CONSTRAINT claims_operation_open_check CHECK (operation_open)
);
CREATE INDEX claims_by_operation ON claims USING btree (operation_id);
CREATE TRIGGER claims_deleted AFTER DELETE ON claims REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION claims_taken_or_released();
CREATE TRIGGER claims_inserted AFTER INSERT ON claims REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION claims_taken_or_released();
CREATE TRIGGER partitioned_released AFTER DELETE ON claims REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION partitioned_released();
CREATE TRIGGER placement_deleted AFTER DELETE ON claims REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION placement_claims_changed();
CREATE TRIGGER placement_inserted AFTER INSERT ON claims REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION placement_claims_changed();
CREATE TRIGGER refuse_handover BEFORE UPDATE ON claims FOR EACH STATEMENT EXECUTE FUNCTION refuse_handover();

CREATE TABLE deployables (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid uuid NOT NULL,
    device_uuid uuid NOT NULL,
    host text NOT NULL,
    local_name text NOT NULL,
    name text NOT NULL,
    provider_uuid uuid NOT NULL,
    accelerator text NOT NULL,
    specs jsonb NOT NULL,
    specs_set jsonb NOT NULL DEFAULT '{}'::jsonb,
    specs_version bigint NOT NULL DEFAULT 1,
    attributes jsonb NOT NULL DEFAULT '[]'::jsonb,
    attributes_set jsonb NOT NULL DEFAULT '[]'::jsonb,
    bitstream_id text NOT NULL DEFAULT ''::text,
    program_set text NOT NULL,
    protected text NOT NULL DEFAULT ''::text,
    presence text NOT NULL DEFAULT 'present'::text,
    missing_since timestamp with time zone,
    untouched boolean NOT NULL DEFAULT true,
    lifecycle text NOT NULL DEFAULT 'inactive'::text,
    lifecycle_operation uuid,
    reason text NOT NULL DEFAULT ''::text,
    error_operation uuid,
    error_kind text NOT NULL DEFAULT ''::text,
    administration text NOT NULL DEFAULT 'enabled'::text,
    maintain_reason text NOT NULL DEFAULT ''::text,
    maintain_by text NOT NULL DEFAULT ''::text,
    maintain_until timestamp with time zone,
    fence_reason text,
    fence_operation uuid,
    nova_spec jsonb,
    image jsonb,
    image_bitstream text,
    image_boot text,
    image_lost_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    uninstall_pending_since timestamp with time zone,
    same_holder text NOT NULL DEFAULT ''::text,
    conditions jsonb NOT NULL DEFAULT '[]'::jsonb,
    conditions_since jsonb NOT NULL DEFAULT '{}'::jsonb,
    unready boolean NOT NULL GENERATED ALWAYS AS (conditions @> '[{"level": "unready"}]'::jsonb) STORED,
    excludes text[] NOT NULL DEFAULT '{}'::text[],
    preparation jsonb,
    cleaning jsonb,
    pending_image jsonb,
    CONSTRAINT deployables_pkey PRIMARY KEY (uuid),
    CONSTRAINT deployables_accelerator_key UNIQUE (accelerator),
    CONSTRAINT deployables_host_local_name_key UNIQUE (host, local_name),
    CONSTRAINT deployables_id_key UNIQUE (id),
    CONSTRAINT deployables_name_key UNIQUE (name),
    CONSTRAINT deployables_provider_uuid_key UNIQUE (provider_uuid),
    CONSTRAINT deployables_uuid_host_key UNIQUE (uuid, host),
    CONSTRAINT deployables_device_uuid_host_fkey FOREIGN KEY (device_uuid, host) REFERENCES devices(uuid, host),
    CONSTRAINT deployables_accelerator_check CHECK (accelerator <> ''::text),
    CONSTRAINT deployables_administration_check CHECK (administration = ANY (ARRAY['enabled'::text, 'maintaining'::text])),
    CONSTRAINT deployables_attributes_set_check CHECK (jsonb_typeof(attributes_set) = 'array'::text),
    CONSTRAINT deployables_cleaning_check CHECK (jsonb_typeof(cleaning) = 'object'::text),
    CONSTRAINT deployables_conditions_check CHECK (jsonb_typeof(conditions) = 'array'::text),
    CONSTRAINT deployables_error_has_reason CHECK ((lifecycle = 'error'::text) = (reason <> ''::text)),
    CONSTRAINT deployables_error_operation CHECK (lifecycle = 'error'::text OR error_operation IS NULL AND error_kind = ''::text),
    CONSTRAINT deployables_fence_has_reason CHECK (fence_operation IS NULL OR fence_reason IS NOT NULL),
    CONSTRAINT deployables_fence_reason_check CHECK (fence_reason <> ''::text),
    CONSTRAINT deployables_given_out_once CHECK (nova_spec IS NULL OR (lifecycle = ANY (ARRAY['inactive'::text, 'error'::text]))),
    CONSTRAINT deployables_image_check CHECK (jsonb_typeof(image) = 'object'::text),
    CONSTRAINT deployables_image_known CHECK ((image IS NULL) = (image_bitstream IS NULL) AND (image IS NULL) = (image_boot IS NULL) AND (image IS NOT NULL OR image_lost_at IS NULL)),
    CONSTRAINT deployables_lifecycle_check CHECK (lifecycle = ANY (ARRAY['inactive'::text, 'installing'::text, 'ready'::text, 'error'::text])),
    CONSTRAINT deployables_local_name_check CHECK (local_name <> ''::text),
    CONSTRAINT deployables_maintenance CHECK (administration = 'maintaining'::text OR maintain_by = ''::text AND maintain_until IS NULL),
    CONSTRAINT deployables_maintenance_has_reason CHECK ((administration = 'maintaining'::text) = (maintain_reason <> ''::text)),
    CONSTRAINT deployables_missing_since CHECK ((presence = 'missing'::text) = (missing_since IS NOT NULL)),
    CONSTRAINT deployables_name_check CHECK (name <> ''::text),
    CONSTRAINT deployables_nova_spec_check CHECK (jsonb_typeof(nova_spec) = 'object'::text),
    CONSTRAINT deployables_pending_image_check CHECK (jsonb_typeof(pending_image) = 'object'::text AND (pending_image ->> 'bitstream_id'::text) <> ''::text),
    CONSTRAINT deployables_preparation_check CHECK (jsonb_typeof(preparation) = 'object'::text),
    CONSTRAINT deployables_presence_check CHECK (presence = ANY (ARRAY['present'::text, 'missing'::text])),
    CONSTRAINT deployables_served_is_installed CHECK (uninstall_pending_since IS NULL OR lifecycle <> 'ready'::text),
    CONSTRAINT deployables_served_is_touched CHECK ((lifecycle = ANY (ARRAY['inactive'::text, 'error'::text])) OR NOT untouched)
);
CREATE INDEX deployables_by_device ON deployables USING btree (device_uuid);
CREATE INDEX deployables_by_host ON deployables USING btree (host, id);
CREATE INDEX deployables_by_lifecycle ON deployables USING btree (lifecycle, id);
CREATE INDEX deployables_excludes ON deployables USING btree (host) WHERE excludes <> '{}'::text[];
CREATE INDEX deployables_fenced ON deployables USING btree (id) WHERE fence_reason IS NOT NULL;
CREATE INDEX deployables_image_lost ON deployables USING btree (host) WHERE image_lost_at IS NOT NULL;
CREATE INDEX deployables_image_pending ON deployables USING btree (id) WHERE pending_image IS NOT NULL;
CREATE INDEX deployables_maintained ON deployables USING btree (maintain_until, id) WHERE administration = 'maintaining'::text;
CREATE INDEX deployables_missing ON deployables USING btree (id) WHERE presence = 'missing'::text;
CREATE INDEX deployables_new ON deployables USING btree (id) WHERE untouched AND lifecycle = 'inactive'::text AND presence = 'present'::text AND protected = ''::text;
CREATE INDEX deployables_same_holder ON deployables USING btree (host, same_holder) WHERE same_holder <> ''::text;
CREATE INDEX deployables_uninstall_pending ON deployables USING btree (id) WHERE uninstall_pending_since IS NOT NULL;
CREATE INDEX deployables_unready ON deployables USING btree (id) WHERE unready;
CREATE INDEX deployables_untouched ON deployables USING btree (id) WHERE untouched;
CREATE INDEX deployables_whitelisted ON deployables USING btree (host) WHERE nova_spec IS NOT NULL;
CREATE INDEX deployables_with_attributes_set ON deployables USING btree (id) WHERE attributes_set <> '[]'::jsonb;
CREATE TRIGGER attributes_set_changed AFTER UPDATE OF attributes_set ON deployables FOR EACH ROW WHEN (old.attributes_set <> new.attributes_set) EXECUTE FUNCTION attributes_set_changed();
CREATE TRIGGER cleaning_changed AFTER UPDATE OF cleaning ON deployables FOR EACH ROW WHEN (old.cleaning IS DISTINCT FROM new.cleaning) EXECUTE FUNCTION cleaning_changed();
CREATE TRIGGER clear_pending_image BEFORE UPDATE OF bitstream_id ON deployables FOR EACH ROW WHEN ((new.pending_image ->> 'bitstream_id'::text) = new.bitstream_id) EXECUTE FUNCTION clear_pending_image();
CREATE TRIGGER conditions_changed AFTER UPDATE OF conditions ON deployables FOR EACH ROW WHEN (old.conditions <> new.conditions AND conditions_named(old.conditions) <> conditions_named(new.conditions)) EXECUTE FUNCTION conditions_changed();
CREATE TRIGGER deployables_conditions_added BEFORE INSERT ON deployables FOR EACH ROW WHEN (new.conditions <> '[]'::jsonb) EXECUTE FUNCTION deployables_conditions_since();
CREATE TRIGGER deployables_conditions_since BEFORE UPDATE OF conditions ON deployables FOR EACH ROW WHEN (old.conditions <> new.conditions) EXECUTE FUNCTION deployables_conditions_since();
CREATE TRIGGER deployables_deleted AFTER DELETE ON deployables REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_deleted();
CREATE TRIGGER deployables_image BEFORE UPDATE ON deployables FOR EACH ROW WHEN (new.image IS NOT NULL) EXECUTE FUNCTION deployables_image();
CREATE TRIGGER deployables_inserted AFTER INSERT ON deployables REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_inserted();
CREATE TRIGGER deployables_updated AFTER UPDATE ON deployables REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_updated();
CREATE TRIGGER excludes_changed AFTER UPDATE OF excludes ON deployables FOR EACH ROW WHEN (old.excludes <> new.excludes) EXECUTE FUNCTION excludes_changed();
CREATE TRIGGER note_lifecycle BEFORE UPDATE OF lifecycle ON deployables FOR EACH ROW WHEN (old.lifecycle <> new.lifecycle) EXECUTE FUNCTION note_lifecycle();
CREATE TRIGGER note_update BEFORE UPDATE ON deployables FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER nova_spec_given BEFORE UPDATE OF nova_spec ON deployables FOR EACH ROW WHEN (old.nova_spec IS NULL AND new.nova_spec IS NOT NULL) EXECUTE FUNCTION nova_spec_given();
CREATE TRIGGER partitioned_added AFTER INSERT ON deployables REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION partitioned_added();
CREATE TRIGGER partitioned_moved AFTER UPDATE OF device_uuid ON deployables FOR EACH ROW WHEN (old.device_uuid <> new.device_uuid) EXECUTE FUNCTION partitioned_moved();
CREATE TRIGGER pending_image_changed AFTER UPDATE ON deployables FOR EACH ROW WHEN (old.pending_image IS DISTINCT FROM new.pending_image) EXECUTE FUNCTION pending_image_changed();
CREATE TRIGGER placement_deleted AFTER DELETE ON deployables REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER placement_inserted AFTER INSERT ON deployables REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER placement_updated AFTER UPDATE ON deployables REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER preparation_changed AFTER UPDATE OF preparation ON deployables FOR EACH ROW WHEN (old.preparation IS DISTINCT FROM new.preparation) EXECUTE FUNCTION preparation_changed();
CREATE TRIGGER same_holder_changed AFTER UPDATE OF same_holder ON deployables FOR EACH ROW WHEN (old.same_holder <> new.same_holder) EXECUTE FUNCTION same_holder_changed();
CREATE TRIGGER uninstall_pending_changed AFTER UPDATE OF uninstall_pending_since ON deployables FOR EACH ROW WHEN ((old.uninstall_pending_since IS NULL) <> (new.uninstall_pending_since IS NULL)) EXECUTE FUNCTION uninstall_pending_changed();

CREATE TABLE device_profiles (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    description text,
    groups jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone,
    CONSTRAINT device_profiles_pkey PRIMARY KEY (uuid),
    CONSTRAINT device_profiles_id_key UNIQUE (id),
    CONSTRAINT device_profiles_name_key UNIQUE (name),
    CONSTRAINT device_profiles_groups_check CHECK (jsonb_typeof(groups) = 'array'::text AND jsonb_array_length(groups) > 0),
    CONSTRAINT device_profiles_name_check CHECK (name <> ''::text AND length(name) <= 255)
);
CREATE TRIGGER device_profiles_deleted AFTER DELETE ON device_profiles REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_added_or_removed();
CREATE TRIGGER device_profiles_inserted AFTER INSERT ON device_profiles REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_added_or_removed();

CREATE TABLE devices (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid uuid NOT NULL,
    host text NOT NULL,
    backend text NOT NULL,
    driver text NOT NULL,
    identity text NOT NULL,
    type text NOT NULL,
    vendor_id text NOT NULL,
    product_id text NOT NULL,
    vendor text NOT NULL,
    model text NOT NULL,
    numa_node integer,
    board_info jsonb NOT NULL DEFAULT '{}'::jsonb,
    control_path_kind text NOT NULL,
    control_path_info jsonb NOT NULL,
    observed_seq bigint NOT NULL DEFAULT 0,
    presence text NOT NULL DEFAULT 'present'::text,
    missing_since timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    fingerprint jsonb NOT NULL DEFAULT '{}'::jsonb,
    replaced_by text,
    partitioning jsonb,
    wanted_layout jsonb,
    layout_differs_since timestamp with time zone,
    partition_operation uuid,
    partition_open boolean GENERATED ALWAYS AS (CASE WHEN partition_operation IS NOT NULL THEN true ELSE NULL::boolean END) STORED,
    layout_doubt_operation uuid,
    CONSTRAINT devices_pkey PRIMARY KEY (uuid),
    CONSTRAINT devices_host_identity_key UNIQUE (host, identity),
    CONSTRAINT devices_id_key UNIQUE (id),
    CONSTRAINT devices_uuid_host_key UNIQUE (uuid, host),
    CONSTRAINT devices_host_backend_fkey FOREIGN KEY (host, backend) REFERENCES backends(host, name),
    CONSTRAINT devices_partition_fkey FOREIGN KEY (partition_operation, partition_open) REFERENCES operations(id, open),
    CONSTRAINT devices_fingerprint_check CHECK (jsonb_typeof(fingerprint) = 'object'::text),
    CONSTRAINT devices_identity_check CHECK (identity <> ''::text),
    CONSTRAINT devices_layout_differs_from_wanted CHECK (layout_differs_since IS NULL OR wanted_layout IS NOT NULL),
    CONSTRAINT devices_missing_since CHECK ((presence = 'missing'::text) = (missing_since IS NOT NULL)),
    CONSTRAINT devices_partitioning_check CHECK (jsonb_typeof(partitioning) = 'object'::text),
    CONSTRAINT devices_presence_check CHECK (presence = ANY (ARRAY['present'::text, 'missing'::text])),
    CONSTRAINT devices_replaced_by_check CHECK (replaced_by <> ''::text),
    CONSTRAINT devices_replaced_is_missing CHECK (replaced_by IS NULL OR presence = 'missing'::text),
    CONSTRAINT devices_wanted_layout_check CHECK (jsonb_typeof(wanted_layout) = 'object'::text)
);
CREATE INDEX devices_by_backend ON devices USING btree (host, backend);
CREATE INDEX devices_layout_differs ON devices USING btree (host) WHERE layout_differs_since IS NOT NULL;
CREATE INDEX devices_missing ON devices USING btree (missing_since) WHERE presence = 'missing'::text;
CREATE UNIQUE INDEX devices_partitioned ON devices USING btree (partition_operation) WHERE partition_operation IS NOT NULL;
CREATE INDEX devices_replaced ON devices USING btree (host) WHERE replaced_by IS NOT NULL;
CREATE TRIGGER devices_back BEFORE UPDATE ON devices FOR EACH ROW WHEN (old.replaced_by IS NOT NULL AND new.presence = 'present'::text) EXECUTE FUNCTION devices_back();
CREATE TRIGGER devices_deleted AFTER DELETE ON devices REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_deleted();
CREATE TRIGGER devices_inserted AFTER INSERT ON devices REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_inserted();
CREATE TRIGGER devices_layout BEFORE UPDATE OF partitioning, wanted_layout ON devices FOR EACH ROW WHEN (old.partitioning IS DISTINCT FROM new.partitioning OR old.wanted_layout IS DISTINCT FROM new.wanted_layout) EXECUTE FUNCTION devices_layout();
CREATE TRIGGER devices_updated AFTER UPDATE ON devices REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_updated();
CREATE TRIGGER note_update BEFORE UPDATE ON devices FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER refuse_handover BEFORE UPDATE OF partition_operation ON devices FOR EACH ROW WHEN (old.partition_operation IS NOT NULL AND new.partition_operation IS NOT NULL AND old.partition_operation <> new.partition_operation) EXECUTE FUNCTION refuse_handover();

CREATE TABLE duplicate_agents (
    host text NOT NULL,
    instance text NOT NULL,
    boot_id text NOT NULL,
    agent_version text NOT NULL,
    address text NOT NULL,
    started_at timestamp with time zone NOT NULL DEFAULT now(),
    since timestamp with time zone NOT NULL DEFAULT now(),
    last_seen timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT duplicate_agents_pkey PRIMARY KEY (host, instance),
    CONSTRAINT duplicate_agents_host_fkey FOREIGN KEY (host) REFERENCES hosts(name) ON DELETE CASCADE,
    CONSTRAINT duplicate_agents_instance_check CHECK (instance <> ''::text)
);

CREATE TABLE events (
    transaction xid8 NOT NULL DEFAULT current_setting('cyborg.transaction'::text)::xid8,
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    subject_kind text NOT NULL,
    subject_id text NOT NULL,
    host text NOT NULL DEFAULT ''::text,
    axis text NOT NULL,
    from_value text NOT NULL,
    to_value text NOT NULL,
    data jsonb,
    operation_id uuid DEFAULT NULLIF(current_setting('cyborg.operation'::text, true), ''::text)::uuid,
    actor text NOT NULL DEFAULT COALESCE(current_setting('cyborg.actor'::text, true), ''::text),
    request_id text NOT NULL DEFAULT COALESCE(current_setting('cyborg.request_id'::text, true), ''::text),
    CONSTRAINT events_pkey PRIMARY KEY (transaction, id)
);
CREATE INDEX events_by_host ON events USING btree (host, transaction, id);
CREATE INDEX events_by_operation ON events USING btree (operation_id, transaction, id) WHERE operation_id IS NOT NULL;
CREATE INDEX events_by_subject ON events USING btree (subject_kind, subject_id, transaction, id);
CREATE INDEX events_by_time ON events USING btree (at);
CREATE TRIGGER number_transaction BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION number_transaction();

CREATE TABLE feed_epochs (
    epoch integer NOT NULL,
    base bigint NOT NULL,
    server_started timestamp with time zone NOT NULL,
    began_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    relation oid NOT NULL,
    first bigint,
    CONSTRAINT feed_epochs_pkey PRIMARY KEY (epoch)
);
CREATE TRIGGER writers_begin_epochs BEFORE INSERT ON feed_epochs FOR EACH STATEMENT EXECUTE FUNCTION writers_begin_epochs();

CREATE TABLE forgotten_cleanings (
    host text NOT NULL,
    kind text NOT NULL,
    identity text NOT NULL,
    fingerprint jsonb NOT NULL,
    unclean text NOT NULL,
    since timestamp with time zone NOT NULL,
    CONSTRAINT forgotten_cleanings_pkey PRIMARY KEY (host, kind, identity, fingerprint)
);

CREATE TABLE forgotten_handles (
    host text NOT NULL,
    kind text NOT NULL,
    identity text NOT NULL,
    unconfirmed_kind text NOT NULL,
    unconfirmed_id text NOT NULL,
    unconfirmed_operation uuid NOT NULL,
    prepared boolean NOT NULL DEFAULT false,
    CONSTRAINT forgotten_handles_pkey PRIMARY KEY (host, kind, identity)
);

CREATE TABLE forgotten_installs (
    host text NOT NULL,
    local_name text NOT NULL,
    fingerprint jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT forgotten_installs_pkey PRIMARY KEY (host, local_name)
);

CREATE TABLE grant_keys (
    id text NOT NULL,
    public bytea NOT NULL,
    last_seen timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT grant_keys_pkey PRIMARY KEY (id),
    CONSTRAINT grant_keys_id_check CHECK (id <> ''::text),
    CONSTRAINT grant_keys_public_check CHECK (length(public) = 32)
);

CREATE TABLE host_identities (
    host text NOT NULL,
    state text NOT NULL,
    token_hash bytea,
    token_expires_at timestamp with time zone,
    enrollment bigint NOT NULL DEFAULT 0,
    revoked_through bigint NOT NULL DEFAULT '-1'::integer,
    revoke_reason text NOT NULL DEFAULT ''::text,
    CONSTRAINT host_identities_pkey PRIMARY KEY (host),
    CONSTRAINT host_identities_token_hash_key UNIQUE (token_hash),
    CONSTRAINT host_identities_check CHECK (revoked_through <= enrollment),
    CONSTRAINT host_identities_check1 CHECK ((state = 'invited'::text) = (token_hash IS NOT NULL) AND (token_hash IS NULL) = (token_expires_at IS NULL)),
    CONSTRAINT host_identities_state_check CHECK (state = ANY (ARRAY['invited'::text, 'enrolled'::text, 'revoked'::text])),
    CONSTRAINT host_identities_token_hash_check CHECK (octet_length(token_hash) = 32)
);
CREATE TRIGGER host_identities_changed AFTER INSERT OR UPDATE ON host_identities FOR EACH ROW EXECUTE FUNCTION host_identities_changed();

CREATE TABLE hosts (
    name text NOT NULL,
    boot_id text NOT NULL,
    registered_at timestamp with time zone NOT NULL DEFAULT now(),
    last_seen timestamp with time zone NOT NULL DEFAULT now(),
    instance text NOT NULL DEFAULT ''::text,
    agent_version text NOT NULL,
    agent_address text NOT NULL DEFAULT ''::text,
    agent_started_at timestamp with time zone NOT NULL DEFAULT now(),
    busy boolean NOT NULL DEFAULT false,
    clock_offset interval,
    report_seq bigint NOT NULL,
    digest text NOT NULL,
    base text NOT NULL DEFAULT ''::text,
    generation bigint NOT NULL DEFAULT 1,
    attachments jsonb NOT NULL DEFAULT '[]'::jsonb,
    whitelist jsonb,
    whitelist_written text,
    journal_opening uuid,
    journal_writes bigint NOT NULL DEFAULT 0,
    uptime interval,
    heard_epoch integer,
    facts jsonb,
    CONSTRAINT hosts_pkey PRIMARY KEY (name),
    CONSTRAINT hosts_facts_check CHECK (jsonb_typeof(facts) = 'object'::text),
    CONSTRAINT hosts_name_check CHECK (name <> ''::text)
) WITH (fillfactor=60);
CREATE INDEX hosts_whitelist_differs ON hosts USING btree (name) WHERE (whitelist ->> 'sha256'::text) <> COALESCE(whitelist_written, ''::text);
CREATE INDEX hosts_with_attachments ON hosts USING btree (name) WHERE attachments <> '[]'::jsonb;
CREATE TRIGGER forget_uptime BEFORE UPDATE OF boot_id ON hosts FOR EACH ROW WHEN (new.boot_id <> old.boot_id AND NOT new.uptime IS DISTINCT FROM old.uptime) EXECUTE FUNCTION forget_uptime();
CREATE TRIGGER hosts_changed AFTER INSERT OR DELETE OR UPDATE OF boot_id ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_changed();
CREATE TRIGGER placement_inserted AFTER INSERT ON hosts REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_hosts_inserted();

CREATE TABLE image_urls (
    operation_id uuid NOT NULL,
    deployable_uuid uuid NOT NULL,
    secret bytea NOT NULL,
    host text NOT NULL,
    image jsonb NOT NULL,
    size bigint NOT NULL,
    valid interval NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT image_urls_pkey PRIMARY KEY (operation_id, deployable_uuid),
    CONSTRAINT image_urls_secret_key UNIQUE (secret),
    CONSTRAINT image_urls_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations(id) ON DELETE CASCADE,
    CONSTRAINT image_urls_host_check CHECK (host <> ''::text),
    CONSTRAINT image_urls_secret_check CHECK (length(secret) = 32),
    CONSTRAINT image_urls_size_check CHECK (size >= 0),
    CONSTRAINT image_urls_valid_check CHECK (valid > '00:00:00'::interval)
);
CREATE INDEX image_urls_by_end ON image_urls USING btree (expires_at);

CREATE TABLE instance_drift (
    instance_uuid uuid NOT NULL,
    class text NOT NULL,
    host text NOT NULL,
    accelerators uuid[] NOT NULL,
    detail text NOT NULL,
    found_at timestamp with time zone NOT NULL DEFAULT now(),
    last_found_at timestamp with time zone NOT NULL DEFAULT now(),
    times integer NOT NULL DEFAULT 1,
    repaired_at timestamp with time zone,
    counts boolean NOT NULL GENERATED ALWAYS AS (times > 1 OR class = 'instance_error'::text) STORED,
    CONSTRAINT instance_drift_pkey PRIMARY KEY (instance_uuid, class),
    CONSTRAINT instance_drift_class_check CHECK (class <> ''::text)
);
CREATE INDEX instance_drift_open ON instance_drift USING btree (class) WHERE repaired_at IS NULL;
CREATE INDEX instance_drift_repaired ON instance_drift USING btree (repaired_at) WHERE repaired_at IS NOT NULL;
CREATE TRIGGER instance_drift_changed AFTER INSERT OR UPDATE ON instance_drift FOR EACH ROW EXECUTE FUNCTION instance_drift_changed();
CREATE TRIGGER instance_drift_found BEFORE UPDATE ON instance_drift FOR EACH ROW WHEN (old.repaired_at IS NOT NULL) EXECUTE FUNCTION instance_drift_found();
CREATE TRIGGER instance_drift_inserted BEFORE INSERT ON instance_drift FOR EACH ROW EXECUTE FUNCTION instance_drift_found();

CREATE TABLE operation_kinds (
    kind text NOT NULL,
    closes_placement boolean NOT NULL,
    CONSTRAINT operation_kinds_pkey PRIMARY KEY (kind)
);

CREATE TABLE operation_subjects (
    operation_id uuid NOT NULL,
    position integer NOT NULL,
    kind text NOT NULL,
    subject_id text NOT NULL,
    CONSTRAINT operation_subjects_pkey PRIMARY KEY (operation_id, "position"),
    CONSTRAINT operation_subjects_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations(id) ON DELETE CASCADE,
    CONSTRAINT operation_subjects_position_check CHECK ("position" >= 0),
    CONSTRAINT operation_subjects_subject_id_check CHECK (subject_id <> ''::text)
);
CREATE INDEX operation_subjects_by_subject ON operation_subjects USING btree (kind, subject_id, operation_id);

CREATE TABLE operations (
    id uuid NOT NULL,
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'admitted'::text,
    open boolean NOT NULL GENERATED ALWAYS AS (state = ANY (ARRAY['admitted'::text, 'running'::text])) STORED,
    host text NOT NULL,
    first_subject integer NOT NULL DEFAULT 0,
    input jsonb NOT NULL,
    before jsonb NOT NULL DEFAULT '{}'::jsonb,
    steps jsonb NOT NULL DEFAULT '[]'::jsonb,
    result jsonb,
    error jsonb,
    actor text NOT NULL,
    actor_id text NOT NULL DEFAULT ''::text,
    project text NOT NULL DEFAULT ''::text,
    request_id text NOT NULL DEFAULT ''::text,
    idempotency_key text,
    fingerprint text,
    retry_of uuid,
    cancel_at timestamp with time zone,
    notification_pending boolean NOT NULL DEFAULT false,
    admitted_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    run_id text NOT NULL DEFAULT ''::text,
    assignment bigint NOT NULL DEFAULT next_assignment(),
    stray_run text NOT NULL DEFAULT ''::text,
    cancel_repeated_at timestamp with time zone,
    CONSTRAINT operations_pkey PRIMARY KEY (id),
    CONSTRAINT operations_id_open_key UNIQUE (id, open),
    CONSTRAINT operations_have_a_subject FOREIGN KEY (id, first_subject) REFERENCES operation_subjects(operation_id, "position") DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT operations_kind_fkey FOREIGN KEY (kind) REFERENCES operation_kinds(kind),
    CONSTRAINT operations_retry_of_fkey FOREIGN KEY (retry_of) REFERENCES operations(id) ON DELETE SET NULL,
    CONSTRAINT operations_bind_notifies CHECK (kind = 'bind'::text OR NOT notification_pending),
    CONSTRAINT operations_ended_at CHECK (open = (ended_at IS NULL)),
    CONSTRAINT operations_failure_has_error CHECK ((state = ANY (ARRAY['failed'::text, 'needs_operator'::text, 'cancelled'::text])) = (error IS NOT NULL)),
    CONSTRAINT operations_first_subject_check CHECK (first_subject = 0),
    CONSTRAINT operations_idempotency_key_check CHECK (idempotency_key <> ''::text),
    CONSTRAINT operations_key_has_fingerprint CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT operations_started_at CHECK ((state <> ALL (ARRAY['running'::text, 'succeeded'::text, 'needs_operator'::text])) OR started_at IS NOT NULL),
    CONSTRAINT operations_state_check CHECK (state = ANY (ARRAY['admitted'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'needs_operator'::text, 'cancelled'::text]))
);
CREATE INDEX operations_by_host ON operations USING btree (host, admitted_at DESC, id DESC);
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations USING btree (actor, actor_id, project, idempotency_key);
CREATE INDEX operations_by_retry ON operations USING btree (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX operations_ended ON operations USING btree (ended_at) WHERE NOT open;
CREATE INDEX operations_idempotent ON operations USING btree (admitted_at) WHERE idempotency_key IS NOT NULL;
CREATE INDEX operations_in_need ON operations USING btree (admitted_at DESC, id DESC) WHERE state = 'needs_operator'::text;
CREATE INDEX operations_newest ON operations USING btree (admitted_at DESC, id DESC);
CREATE INDEX operations_open ON operations USING btree (admitted_at) WHERE open;
CREATE INDEX operations_to_notify ON operations USING btree (admitted_at, id) WHERE notification_pending AND NOT open;
CREATE TRIGGER operations_inserted AFTER INSERT ON operations REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_inserted();
CREATE TRIGGER operations_updated AFTER UPDATE ON operations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_updated();
CREATE TRIGGER run_corrected AFTER UPDATE OF stray_run, cancel_repeated_at ON operations FOR EACH ROW EXECUTE FUNCTION run_corrected();

CREATE TABLE pending_settlements (
    host text NOT NULL,
    backend text NOT NULL,
    handle text NOT NULL,
    deployable text NOT NULL,
    accelerator uuid,
    attach boolean NOT NULL,
    first_assignment bigint NOT NULL,
    assignment bigint NOT NULL,
    event jsonb NOT NULL,
    error text NOT NULL DEFAULT ''::text,
    CONSTRAINT pending_settlements_pkey PRIMARY KEY (host, backend, handle),
    CONSTRAINT pending_settlements_host_fkey FOREIGN KEY (host) REFERENCES hosts(name) ON DELETE CASCADE
);
CREATE TRIGGER placement_settlement_failed AFTER UPDATE OF error ON pending_settlements FOR EACH ROW WHEN ((old.error = ''::text) <> (new.error = ''::text)) EXECUTE FUNCTION placement_settlement_failed();
CREATE TRIGGER placement_settlement_over AFTER DELETE ON pending_settlements FOR EACH ROW WHEN (old.error <> ''::text) EXECUTE FUNCTION placement_settlement_failed();

CREATE TABLE placement_drift (
    host text NOT NULL,
    class text NOT NULL,
    provider_uuid uuid NOT NULL,
    provider_name text NOT NULL DEFAULT ''::text,
    subject_kind text NOT NULL,
    subject_id text NOT NULL,
    detail text NOT NULL,
    found_at timestamp with time zone NOT NULL DEFAULT now(),
    last_found_at timestamp with time zone NOT NULL DEFAULT now(),
    times integer NOT NULL DEFAULT 1,
    repaired_at timestamp with time zone,
    counts boolean NOT NULL GENERATED ALWAYS AS (times > 1 OR (class <> ALL (ARRAY['unknown_allocation'::text, 'missing_allocation'::text]))) STORED,
    CONSTRAINT placement_drift_pkey PRIMARY KEY (host, class, provider_uuid),
    CONSTRAINT placement_drift_class_check CHECK (class <> ''::text)
);
CREATE INDEX placement_drift_open ON placement_drift USING btree (class) WHERE repaired_at IS NULL;
CREATE INDEX placement_drift_repaired ON placement_drift USING btree (repaired_at) WHERE repaired_at IS NOT NULL;
CREATE TRIGGER placement_drift_changed AFTER INSERT OR UPDATE ON placement_drift FOR EACH ROW EXECUTE FUNCTION placement_drift_changed();
CREATE TRIGGER placement_drift_found BEFORE UPDATE ON placement_drift FOR EACH ROW WHEN (old.repaired_at IS NOT NULL) EXECUTE FUNCTION placement_drift_found();
CREATE TRIGGER placement_drift_inserted BEFORE INSERT ON placement_drift FOR EACH ROW EXECUTE FUNCTION placement_drift_found();

CREATE TABLE placement_following (
    one boolean NOT NULL DEFAULT true,
    compare_every interval NOT NULL,
    CONSTRAINT placement_following_pkey PRIMARY KEY (one),
    CONSTRAINT placement_following_one_check CHECK (one)
);

CREATE TABLE placement_sync (
    host text NOT NULL,
    wanted bigint NOT NULL DEFAULT 1,
    asked bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    asked_at timestamp with time zone,
    since timestamp with time zone DEFAULT now(),
    try_at timestamp with time zone,
    error text NOT NULL DEFAULT ''::text,
    silent boolean NOT NULL DEFAULT false,
    compare boolean NOT NULL DEFAULT false,
    compared_at timestamp with time zone NOT NULL DEFAULT now(),
    marks jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT placement_sync_pkey PRIMARY KEY (host),
    CONSTRAINT placement_sync_order CHECK (done <= wanted AND asked <= wanted),
    CONSTRAINT placement_sync_since CHECK ((done = wanted) = (since IS NULL))
) WITH (fillfactor=70);
CREATE INDEX placement_sync_compared ON placement_sync USING btree (compared_at) WHERE done = wanted;
CREATE INDEX placement_sync_due ON placement_sync USING btree (host) WHERE done < wanted;
CREATE INDEX placement_sync_silent ON placement_sync USING btree (host) WHERE silent;

CREATE TABLE rescues (
    instance_uuid uuid NOT NULL,
    boot_id text NOT NULL,
    operation_id uuid NOT NULL,
    asked_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT rescues_pkey PRIMARY KEY (instance_uuid, boot_id)
);

CREATE TABLE services (
    role text NOT NULL,
    host text NOT NULL,
    instance text NOT NULL,
    version text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    last_seen timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT services_pkey PRIMARY KEY (role, host, instance)
);

CREATE TABLE whitelist_drift (
    host text NOT NULL,
    detail text NOT NULL,
    found_at timestamp with time zone NOT NULL DEFAULT now(),
    last_found_at timestamp with time zone NOT NULL DEFAULT now(),
    times integer NOT NULL DEFAULT 1,
    repaired_at timestamp with time zone,
    counts boolean NOT NULL GENERATED ALWAYS AS (times > 1) STORED,
    CONSTRAINT whitelist_drift_pkey PRIMARY KEY (host)
);
CREATE INDEX whitelist_drift_repaired ON whitelist_drift USING btree (repaired_at) WHERE repaired_at IS NOT NULL;
CREATE TRIGGER whitelist_drift_changed AFTER INSERT OR UPDATE ON whitelist_drift FOR EACH ROW EXECUTE FUNCTION whitelist_drift_changed();

CREATE VIEW drift AS
 SELECT host,
    class,
    provider_uuid,
    provider_name,
    '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid,
    detail,
    found_at,
    last_found_at,
    counts,
    repaired_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
   FROM placement_drift
UNION ALL
 SELECT host,
    class,
    '00000000-0000-0000-0000-000000000000'::uuid AS provider_uuid,
    ''::text AS provider_name,
    instance_uuid,
    detail,
    found_at,
    last_found_at,
    counts,
    repaired_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
   FROM instance_drift
UNION ALL
 SELECT host,
    'lost_at_boot'::text AS class,
    '00000000-0000-0000-0000-000000000000'::uuid AS provider_uuid,
    ''::text AS provider_name,
    instance_uuid,
    ('its host has booted since its accelerators were bound: it may run without '::text || count(*)) || ' of them'::text AS detail,
    min(lost_at) AS found_at,
    max(lost_at) AS last_found_at,
    true AS counts,
    NULL::timestamp with time zone AS repaired_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
   FROM arqs
  WHERE lost_at IS NOT NULL
  GROUP BY host, instance_uuid
UNION ALL
 SELECT host,
    'nova_whitelist'::text AS class,
    '00000000-0000-0000-0000-000000000000'::uuid AS provider_uuid,
    ''::text AS provider_name,
    '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid,
    detail,
    found_at,
    last_found_at,
    counts,
    repaired_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
   FROM whitelist_drift
UNION ALL
 SELECT host,
    'lost_image'::text AS class,
    provider_uuid,
    name AS provider_name,
    '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid,
    ((('image '::text || image_bitstream) || ' is not loaded any more since its host booted; it has '::text) ||
        CASE
            WHEN bitstream_id = ''::text THEN 'none'::text
            ELSE bitstream_id
        END) || COALESCE((('; image '::text || (pending_image ->> 'bitstream_id'::text)) || ' takes effect after a '::text) || replace(pending_image ->> 'until'::text, '_'::text, ' '::text), ''::text) AS detail,
    image_lost_at AS found_at,
    image_lost_at AS last_found_at,
    true AS counts,
    NULL::timestamp with time zone AS repaired_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
   FROM deployables
  WHERE image_lost_at IS NOT NULL AND lifecycle = 'ready'::text
UNION ALL
 SELECT host,
    'layout'::text AS class,
    '00000000-0000-0000-0000-000000000000'::uuid AS provider_uuid,
    ''::text AS provider_name,
    '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid,
    ((('device '::text || identity) ||
        CASE
            WHEN partitioning IS NULL THEN ' cannot be divided any more'::text
            ELSE ' is divided otherwise: '::text || layout_text(partitioning -> 'layout'::text)
        END) || '; wanted: '::text) || layout_text(wanted_layout) AS detail,
    layout_differs_since AS found_at,
    layout_differs_since AS last_found_at,
    true AS counts,
    NULL::timestamp with time zone AS repaired_at,
    uuid AS device_uuid
   FROM devices
  WHERE layout_differs_since IS NOT NULL AND presence = 'present'::text AND partition_operation IS NULL;

CREATE OR REPLACE FUNCTION arqs_deleted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, coalesce(o.host, ''), e.axis, e.old, '', e.data
    FROM old_rows o LEFT JOIN attach_handles h ON h.uuid = o.handle_uuid AND o.lost_at IS NOT NULL CROSS JOIN LATERAL (VALUES
        (1, 'arq', o.uuid::text, 'state', o.state, NULL),
        (2, 'handle', h.uuid::text, 'health', 'lost_at_boot', jsonb_build_object('instance', o.instance_uuid, 'boot', o.lost_boot,
            'booted_at', o.lost_at, 'arq', o.uuid, 'accelerator', h.deployable_uuid, 'identity', h.identity))
        ) AS e (position, subject, subject_id, axis, old, data)
    WHERE e.subject_id IS NOT NULL ORDER BY o.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION arqs_inserted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', n.uuid::text, coalesce(n.host, ''), 'state', '', n.state FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION arqs_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, coalesce(n.host, o.host, ''), e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
    LEFT JOIN attach_handles h ON h.uuid = coalesce(n.handle_uuid, o.handle_uuid) AND n.lost_boot IS DISTINCT FROM o.lost_boot
    CROSS JOIN LATERAL (VALUES
        (1, 'arq', n.uuid::text, 'state', o.state, n.state, nullif(jsonb_strip_nulls(jsonb_build_object('reason', nullif(n.reason, ''),
            'instance', n.instance_uuid, 'service', n.service, 'handle', n.handle_uuid)), '{}'), o.state <> n.state),
        (2, 'arq', n.uuid::text, 'project', coalesce(o.project, ''), coalesce(n.project, ''), NULL,
            coalesce(o.project, '') <> coalesce(n.project, '')),
        (3, 'arq', n.uuid::text, 'health', CASE WHEN o.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            CASE WHEN n.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            jsonb_build_object('instance', coalesce(n.instance_uuid, o.instance_uuid), 'boot', coalesce(n.lost_boot, o.lost_boot),
                'booted_at', coalesce(n.lost_at, o.lost_at)),
            n.lost_boot IS DISTINCT FROM o.lost_boot),
        (4, 'handle', h.uuid::text, 'health', CASE WHEN o.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            CASE WHEN n.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            jsonb_build_object('instance', coalesce(n.instance_uuid, o.instance_uuid), 'boot', coalesce(n.lost_boot, o.lost_boot),
                'booted_at', coalesce(n.lost_at, o.lost_at), 'arq', n.uuid, 'accelerator', h.deployable_uuid, 'identity', h.identity),
            n.lost_boot IS DISTINCT FROM o.lost_boot AND h.uuid IS NOT NULL)
        ) AS e (position, subject, subject_id, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_added_or_removed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'handle', c.uuid::text, c.host, 'presence', CASE TG_OP WHEN 'DELETE' THEN c.presence ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.presence ELSE '' END,
           jsonb_build_object('accelerator', c.deployable_uuid, 'identity', c.identity)
    FROM rows_changed c ORDER BY c.id;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        SELECT 'accelerator', c.deployable_uuid::text, c.host, 'unclean', '', c.unclean,
               jsonb_build_object('accelerator', c.deployable_uuid, 'handle', c.uuid, 'identity', c.identity)
        FROM rows_changed c WHERE c.unclean <> '' ORDER BY c.id;
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_doubted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.unclean := stronger_cleaning(NEW.unclean, cleaning_after(NEW.deployable_uuid));
    IF NEW.unclean <> '' THEN
        NEW.unclean_since := coalesce(NEW.unclean_since, clock_timestamp());
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_forgotten()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO forgotten_cleanings (host, kind, identity, fingerprint, unclean, since)
    SELECT OLD.host, OLD.kind, OLD.identity, v.fingerprint, OLD.unclean, OLD.unclean_since
    FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE d.uuid = OLD.deployable_uuid
    ON CONFLICT (host, kind, identity, fingerprint) DO UPDATE SET since = least(forgotten_cleanings.since, EXCLUDED.since),
        unclean = stronger_cleaning(forgotten_cleanings.unclean, EXCLUDED.unclean);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_freed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NEW.prepared AND OLD.holder_kind IS NOT NULL THEN
        NEW.unconfirmed_kind := OLD.holder_kind;
        NEW.unconfirmed_id := OLD.holder_id;
        NEW.unconfirmed_operation := OLD.operation_id;
        RETURN NEW;
    END IF;
    NEW.prepared := false;
    NEW.parameters := '{}';
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_given()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM check_given(NEW.deployable_uuid, NEW.uuid, NEW.holder_kind, NEW.holder_id, 'attach_handles');
    NEW.clean := stronger_cleaning(NEW.clean, cleaning_after(NEW.deployable_uuid));
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_left()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    needed text := stronger_cleaning(OLD.clean, cleaning_after(OLD.deployable_uuid));
BEGIN
    IF NEW.clean = '' AND OLD.clean <> '' THEN
        RETURN NEW;
    END IF;
    NEW.clean := '';
    IF needed <> '' THEN
        NEW.unclean := needed;
        NEW.unclean_since := clock_timestamp();
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_released()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.undone_reason := NULL;
    NEW.undone_at := NULL;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_shown_again()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    was forgotten_cleanings;
BEGIN
    FOR was IN SELECT f.* FROM forgotten_cleanings f, deployables d JOIN devices v ON v.uuid = d.device_uuid
        WHERE f.host = NEW.host AND f.kind = NEW.kind AND f.identity = NEW.identity AND d.uuid = NEW.deployable_uuid
          AND NOT other_card(f.fingerprint, v.fingerprint)
    LOOP
        NEW.unclean := stronger_cleaning(NEW.unclean, was.unclean);
        NEW.unclean_since := least(NEW.unclean_since, was.since);
        DELETE FROM forgotten_cleanings f USING deployables d, devices v
        WHERE (f.host, f.kind, f.identity, f.fingerprint) = (was.host, was.kind, was.identity, was.fingerprint)
          AND d.uuid = NEW.deployable_uuid AND v.uuid = d.device_uuid AND f.fingerprint ->> 'serial' IS NOT DISTINCT FROM v.fingerprint ->> 'serial';
    END LOOP;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION attach_handles_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, n.host, e.axis, e.old, e.new,
           jsonb_build_object('accelerator', n.deployable_uuid, 'handle', n.uuid, 'identity', n.identity) || coalesce(e.data, '{}')
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'handle', n.uuid::text, 'accelerator', o.deployable_uuid::text, n.deployable_uuid::text, NULL::jsonb),
        (2, 'handle', n.uuid::text, 'presence', o.presence, n.presence, NULL),
        (3, 'accelerator', n.deployable_uuid::text, 'holder',
            holder_text(o.holder_kind, o.holder_id, o.attached_at), holder_text(n.holder_kind, n.holder_id, n.attached_at),
            CASE WHEN n.holder_kind IS NOT NULL AND n.parameters <> '{}' THEN jsonb_build_object('parameters', n.parameters) END),
        (4, 'handle', n.uuid::text, 'undone', coalesce(o.undone_reason, ''), coalesce(n.undone_reason, ''), NULL),
        (5, 'accelerator', n.deployable_uuid::text, 'unclean', o.unclean, n.unclean,
            CASE WHEN n.unclean = '' THEN jsonb_build_object('cleaned', n.cleaned) END)
        ) AS e (position, subject, subject_id, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION attachment_settled(of_host text, accelerator uuid, what jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
    -- The same report asks for the same correction until the host has reported anew. A report without a
    -- number is that of a decision that release 0.1 has made.
    correction CONSTANT jsonb := jsonb_build_object('identity', what->'identity', 'deployable', what->'deployable',
        'now', what->'now', 'report', nullif(what->'report', '0'));
BEGIN
    IF EXISTS (
        SELECT FROM events WHERE subject_kind = CASE WHEN accelerator IS NULL THEN 'host' ELSE 'accelerator' END
            AND subject_id = coalesce(accelerator::text, of_host) AND axis = 'settled'
            AND (data->'assignment' = what->'assignment' OR data @> correction)) THEN
        RETURN; -- it was told already
    END IF;
    IF accelerator IS NULL THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('host', of_host, of_host, 'settled', '', '', what);
    ELSE
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('accelerator', accelerator::text, of_host, 'settled', '', '', what);
    END IF;
END $function$;

CREATE OR REPLACE FUNCTION attributes_set_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'attributes', '', '', jsonb_build_object('attributes', NEW.attributes_set));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION backends_added_or_removed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'backend', c.host || '/' || c.name, c.host, e.axis, CASE TG_OP WHEN 'DELETE' THEN e.value ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN e.value ELSE '' END, CASE TG_OP WHEN 'INSERT' THEN e.data END
    FROM rows_changed c CROSS JOIN LATERAL (VALUES
        (1, 'state',  c.state,  jsonb_build_object('error', c.error)),
        (2, 'driver', c.driver, NULL::jsonb)) AS e (position, axis, value, data)
    ORDER BY c.host, c.name, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION backends_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'backend', n.host || '/' || n.name, n.host, e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.host = n.host AND o.name = n.name CROSS JOIN LATERAL (VALUES
        (1, 'state',   o.state,  n.state,  jsonb_build_object('error', n.error), (o.state, o.error) <> (n.state, n.error)),
        (2, 'driver',  o.driver, n.driver, NULL::jsonb, o.driver <> n.driver),
        (3, 'options', '', '', NULL::jsonb, o.options <> n.options)) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.host, n.name, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION begin_epoch()
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    PERFORM require_writer();
    LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
    LOCK TABLE events IN SHARE MODE;
    PERFORM begin_feed_epoch();
    RETURN (SELECT max(epoch) FROM feed_epochs);
END $function$;

CREATE OR REPLACE FUNCTION begin_feed_epoch()
 RETURNS bigint
 LANGUAGE sql
AS $function$
    SELECT pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    SELECT setval('assignment_numbers', (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
    FROM assignment_numbers WHERE last_value < (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10;
    INSERT INTO feed_epochs (epoch, base, first, server_started, relation)
    SELECT next.epoch, next.first - pg_snapshot_xmin(pg_current_snapshot())::text::bigint, next.first, pg_postmaster_start_time(), 'feed_epochs'::regclass
    FROM (
        SELECT coalesce(max(epoch), 0) + 1 AS epoch,
            greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20,
                (SELECT transaction::text::bigint FROM events ORDER BY transaction DESC LIMIT 1)
                + ((1 + floor(random() * 1024)::bigint) << 30)) AS first
        FROM feed_epochs) next
    RETURNING base
$function$;

CREATE OR REPLACE FUNCTION check_given(given uuid, given_handle uuid, to_kind text, to_id text, relation text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
    of_host text;
    taken   text;
    shared  text;
    other   text;
    apart   boolean;
    holder  text;
    remedy  text;
BEGIN
    SELECT host, accelerator, same_holder INTO of_host, taken, shared FROM deployables
    WHERE uuid = given AND (same_holder <> '' OR EXISTS (SELECT FROM excluded_with(given)));
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(of_host, 2));
    SELECT d.accelerator, o.apart, coalesce(h.holder_kind || ' ' || h.holder_id || ' has', h.unconfirmed_kind || ' ' || h.unconfirmed_id || ' may still have',
        CASE WHEN h.uuid IS NOT NULL THEN 'has still to be cleaned' ELSE 'Nova may give out' END),
        CASE WHEN h.holder_kind IS NOT NULL AND NOT o.apart AND to_kind IS NOT NULL THEN 'Give both to the same holder, or detach that one first.'
        WHEN h.holder_kind IS NOT NULL THEN 'Detach that one first.' WHEN h.unconfirmed_kind IS NOT NULL THEN 'Reconcile asks the host as soon as it is heard.'
        WHEN h.uuid IS NOT NULL THEN 'A conductor has it cleaned; see its last operations.'
        ELSE 'Take that one out of Nova''s whitelist first, with cyborg host whitelist, and restart nova-compute.' END INTO other, apart, holder, remedy
    FROM (SELECT uuid, false AS apart FROM deployables WHERE host = of_host AND same_holder = shared AND same_holder <> ''
          UNION ALL SELECT e, true FROM excluded_with(given) AS e) AS o
    JOIN deployables d ON d.uuid = o.uuid
    LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.uuid IS DISTINCT FROM given_handle
        AND (coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL OR h.unclean <> '')
        AND (o.apart OR coalesce(h.holder_kind, h.unconfirmed_kind) IS NULL
             OR (coalesce(h.holder_kind, h.unconfirmed_kind), coalesce(h.holder_id, h.unconfirmed_id)) IS DISTINCT FROM (to_kind, to_id))
    WHERE (d.uuid <> given OR to_kind IS NOT NULL) AND (h.uuid IS NOT NULL OR d.nova_spec IS NOT NULL AND (o.apart OR to_kind IS NOT NULL))
    ORDER BY NOT o.apart, h.holder_kind IS NULL, h.unconfirmed_kind IS NULL, h.uuid IS NULL, d.id LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF apart THEN
        RAISE exclusion_violation USING TABLE = relation, CONSTRAINT = 'attach_handles_excludes', HINT = remedy, MESSAGE = format(
            'accelerators "%s" and "%s" exclude each other, and the latter %s', taken, other, holder);
    END IF;
    RAISE exclusion_violation USING TABLE = relation, CONSTRAINT = 'attach_handles_same_holder', HINT = remedy, MESSAGE = format(
        'accelerator "%s" shares %s with "%s", which %s: they go to one holder', taken, shared, other, holder);
END $function$;

CREATE OR REPLACE FUNCTION claims_taken_or_released()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'accelerator', c.deployable_uuid::text, d.host, 'claim', CASE TG_OP WHEN 'DELETE' THEN c.operation_id::text ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.operation_id::text ELSE '' END
    FROM rows_changed c JOIN deployables d ON d.uuid = c.deployable_uuid ORDER BY d.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION cleaning_after(deployable uuid)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN (SELECT CASE COALESCE((deployables.cleaning ->> 'after'::text), ''::text) WHEN ''::text THEN ''::text WHEN 'reset'::text THEN 'reset'::text ELSE 'scrub'::text END AS "case" FROM deployables WHERE (deployables.uuid = cleaning_after.deployable));

CREATE OR REPLACE FUNCTION cleaning_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'reported', '', '', jsonb_build_object('cleaning', NEW.cleaning));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION cleaning_strength(method text)
 RETURNS integer
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE method WHEN ''::text THEN 0 WHEN 'reset'::text THEN 1 ELSE 2 END;

CREATE OR REPLACE FUNCTION clear_pending_image()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.pending_image := NULL;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION conditions_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'conditions', conditions_named(OLD.conditions), conditions_named(NEW.conditions),
            jsonb_build_object('conditions', NEW.conditions));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION conditions_named(conditions jsonb)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN (SELECT COALESCE(string_agg((((e.c ->> 'level'::text) || ' '::text) || (e.c ->> 'code'::text)), ', '::text ORDER BY e.place), ''::text) AS "coalesce" FROM jsonb_array_elements(conditions_named.conditions) WITH ORDINALITY e(c, place));

CREATE OR REPLACE FUNCTION deployables_conditions_since()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    before jsonb := '[]';
    since  jsonb := '{}';
BEGIN
    IF TG_OP = 'UPDATE' THEN
        before := OLD.conditions;
        since := OLD.conditions_since;
    END IF;
    NEW.conditions_since := (
        SELECT coalesce(jsonb_object_agg(n ->> 'code', CASE
            WHEN before @> jsonb_build_array(jsonb_build_object('code', n ->> 'code', 'level', n ->> 'level')) AND since ? (n ->> 'code')
            THEN since -> (n ->> 'code') ELSE to_jsonb(clock_timestamp()) END), '{}')
        FROM jsonb_array_elements(NEW.conditions) AS n);
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION deployables_deleted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', o.uuid::text, o.host, 'presence', o.presence, '', jsonb_build_object('deployable', o.name)
    FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION deployables_image()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    waits   boolean := coalesce(NEW.pending_image ->> 'bitstream_id' = NEW.image_bitstream, false);
    waited  boolean := coalesce(OLD.pending_image ->> 'bitstream_id' = NEW.image_bitstream, false);
    is_ours boolean := NEW.bitstream_id = NEW.image_bitstream;
BEGIN
    IF NEW.presence <> 'present' OR loads_image(NEW.fence_operation) THEN
        RETURN NEW;
    END IF;
    IF loads_image(OLD.fence_operation) THEN
        SELECT boot_id INTO NEW.image_boot FROM hosts WHERE name = NEW.host;
    END IF;
    IF waits THEN
        RETURN NEW;
    ELSIF is_ours AND NEW.pending_image IS NULL THEN
        NEW.image_lost_at := NULL;
    ELSIF NEW.image_lost_at IS NOT NULL AND NOT is_ours AND (NOT waited OR NEW.image_boot = OLD.image_boot) THEN
        RETURN NEW;
    ELSIF is_ours OR NEW.image_boot = OLD.image_boot THEN
        NEW.image := NULL;
        NEW.image_bitstream := NULL;
        NEW.image_boot := NULL;
        NEW.image_lost_at := NULL;
    ELSE
        NEW.image_lost_at := now();
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION deployables_inserted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, '', e.value, e.data
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence',       n.presence,       jsonb_build_object('deployable', n.name, 'device', n.device_uuid)),
        (2, 'name',           n.accelerator,    NULL::jsonb),
        (3, 'lifecycle',      n.lifecycle,      NULL::jsonb),
        (4, 'administration', n.administration, CASE WHEN n.administration = 'maintaining'
            THEN jsonb_build_object('reason', n.maintain_reason, 'by', n.maintain_by, 'until', n.maintain_until) END),
        (5, 'bitstream',      n.bitstream_id,   NULL::jsonb),
        (6, 'protected',      n.protected,      NULL::jsonb),
        (7, 'same_holder',    n.same_holder,    NULL::jsonb),
        (8, 'excludes',       array_to_string(n.excludes, ', '), NULL::jsonb),
        (9, 'conditions',     conditions_named(n.conditions), jsonb_build_object('conditions', n.conditions)),
        (10, 'pending_image', coalesce(n.pending_image ->> 'bitstream_id', ''),
            jsonb_build_object('until', n.pending_image -> 'until', 'bitstream_id', n.bitstream_id))) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION deployables_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, coalesce(e.old, ''), coalesce(e.new, ''), e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence', o.presence, n.presence, NULL::jsonb, o.presence <> n.presence),
        (2, 'name', o.accelerator, n.accelerator, NULL, o.accelerator <> n.accelerator),
        (3, 'lifecycle', o.lifecycle, n.lifecycle,
            CASE WHEN n.lifecycle = 'error' THEN jsonb_build_object('reason', n.reason, 'operation_id', n.error_operation) END,
            (o.lifecycle, o.reason) <> (n.lifecycle, n.reason)),
        (4, 'administration', o.administration, n.administration,
            CASE WHEN n.administration = 'maintaining'
                THEN jsonb_build_object('reason', n.maintain_reason, 'by', n.maintain_by, 'until', n.maintain_until) END,
            (o.administration, o.maintain_reason, o.maintain_by, o.maintain_until)
                IS DISTINCT FROM (n.administration, n.maintain_reason, n.maintain_by, n.maintain_until)),
        (5, 'fence', o.fence_reason, n.fence_reason,
            CASE WHEN n.fence_operation IS NOT NULL THEN jsonb_build_object('operation_id', n.fence_operation) END,
            (o.fence_reason, o.fence_operation) IS DISTINCT FROM (n.fence_reason, n.fence_operation)),
        (6, 'bitstream', o.bitstream_id, n.bitstream_id, NULL, o.bitstream_id <> n.bitstream_id),
        (7, 'protected', o.protected, n.protected, NULL, o.protected <> n.protected),
        (8, 'device', o.device_uuid::text, n.device_uuid::text, NULL, o.device_uuid <> n.device_uuid),
        (9, 'reported', '', '', jsonb_build_object('specs', n.specs, 'attributes', n.attributes),
            (o.specs, o.attributes) <> (n.specs, n.attributes)),
        (10, 'specs', o.specs_version::text, n.specs_version::text, n.specs_set, o.specs_version <> n.specs_version),
        (11, 'nova_whitelist', CASE WHEN o.nova_spec IS NOT NULL THEN 'in' ELSE '' END,
            CASE WHEN n.nova_spec IS NOT NULL THEN 'in' ELSE '' END, n.nova_spec, o.nova_spec IS DISTINCT FROM n.nova_spec),
        (12, 'health', CASE WHEN o.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            CASE WHEN n.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            jsonb_build_object('bitstream_id', coalesce(o.image_bitstream, n.image_bitstream)),
            (o.image_lost_at IS NULL) <> (n.image_lost_at IS NULL))
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION device_profiles_added_or_removed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value, data)
    SELECT 'device_profile', c.uuid::text, 'name', CASE TG_OP WHEN 'DELETE' THEN c.name ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.name ELSE '' END, CASE TG_OP WHEN 'INSERT' THEN jsonb_build_object('groups', c.groups) END
    FROM rows_changed c ORDER BY c.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION devices_back()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.replaced_by := NULL;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION devices_deleted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', o.uuid::text, o.host, 'presence', o.presence, '', jsonb_build_object('identity', o.identity)
    FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION devices_inserted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, '', e.value, jsonb_build_object('identity', n.identity)
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence', n.presence),
        (2, 'backend',  n.backend),
        (3, 'layout',   layout_text(n.partitioning -> 'layout'))) AS e (position, axis, value)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION devices_layout()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.layout_differs_since := CASE WHEN NEW.wanted_layout IS NOT NULL AND NEW.wanted_layout <> coalesce(NEW.partitioning -> 'layout', '{}')
        THEN coalesce(OLD.layout_differs_since, clock_timestamp()) END;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION devices_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, e.old, e.new, jsonb_build_object('identity', n.identity)
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence',    o.presence, n.presence),
        (2, 'replaced_by', coalesce(o.replaced_by, ''), coalesce(n.replaced_by, '')),
        (3, 'backend',     o.backend,  n.backend),
        (4, 'layout',      layout_text(o.partitioning -> 'layout'), layout_text(n.partitioning -> 'layout'))) AS e (position, axis, old, new)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION epoch_in_force()
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    PERFORM feed_base();
    RETURN (SELECT max(epoch) FROM feed_epochs);
END $function$;

CREATE OR REPLACE FUNCTION exceed_assignment(number bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    PERFORM require_writer();
    PERFORM pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    PERFORM setval('assignment_numbers', number + (1 << 20)) FROM assignment_numbers
    WHERE last_value < number AND number < 1::bigint << 62;
    RETURN FOUND;
END $function$;

CREATE OR REPLACE FUNCTION excluded_with(deployable uuid)
 RETURNS SETOF uuid
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    SELECT o.uuid FROM deployables d JOIN deployables o ON o.host = d.host AND o.local_name = ANY(d.excludes) AND o.uuid <> d.uuid
    WHERE d.uuid = deployable
    UNION
    SELECT o.uuid FROM deployables d JOIN deployables o ON o.host = d.host AND o.excludes <> '{}' AND d.local_name = ANY(o.excludes) AND o.uuid <> d.uuid
    WHERE d.uuid = deployable
$function$;

CREATE OR REPLACE FUNCTION excludes_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'excludes', array_to_string(OLD.excludes, ', '), array_to_string(NEW.excludes, ', '));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION feed_base()
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
DECLARE
    in_force bigint := (SELECT CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid THEN base END
        FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
BEGIN
    IF in_force IS NULL THEN
        LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
        in_force := (SELECT CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid THEN base END
            FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
        in_force := coalesce(in_force, begin_feed_epoch());
    END IF;
    RETURN in_force;
END $function$;

CREATE OR REPLACE FUNCTION forget_uptime()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.uptime := NULL;
    RETURN NEW;
END
$function$;

CREATE OR REPLACE FUNCTION holder_text(kind text, id text, attached_at timestamp with time zone)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT coalesce(kind || ':' || id || CASE WHEN attached_at IS NULL THEN ' (in doubt)' ELSE '' END, '')
$function$;

CREATE OR REPLACE FUNCTION host_identities_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('host', NEW.host, NEW.host, 'identity', coalesce(OLD.state, ''), NEW.state,
            CASE WHEN NEW.revoked_through > coalesce(OLD.revoked_through, -1) THEN jsonb_build_object('reason', NEW.revoke_reason) END);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION hosts_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    changed text := coalesce(NEW.name, OLD.name);
BEGIN
    IF OLD.boot_id IS DISTINCT FROM NEW.boot_id THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
        VALUES ('host', changed, changed, 'boot', coalesce(OLD.boot_id, ''), coalesce(NEW.boot_id, ''));
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION instance_drift_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    was    text := '';
    is_now text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
    about  jsonb := jsonb_build_object('instance', NEW.instance_uuid);
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
    END IF;
    IF was = is_now THEN
        RETURN NULL;
    END IF;
    IF is_now = '' THEN
        about := about || '{"repaired": false}';
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', a::text, NEW.host, 'drift_' || NEW.class, was, is_now, about FROM unnest(NEW.accelerators) AS a
    UNION ALL
    SELECT 'host', NEW.host, NEW.host, 'drift_' || NEW.class, was, is_now, about WHERE NEW.accelerators = '{}';
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION instance_drift_found()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.accelerators := ARRAY(
        SELECT DISTINCT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
        WHERE a.instance_uuid = NEW.instance_uuid ORDER BY h.deployable_uuid);
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION journals_lost(of_hosts text[])
 RETURNS void
 LANGUAGE sql
AS $function$
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'host', h.name AS id, h.name, 'journal', '', '', '{}' FROM unnest(of_hosts) AS h (name);
$function$;

CREATE OR REPLACE FUNCTION last_assignment()
 RETURNS bigint
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
    SELECT last_value FROM assignment_numbers
$function$;

CREATE OR REPLACE FUNCTION layout_text(layout jsonb)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (layout IS NULL) THEN ''::text WHEN (layout = '{}'::jsonb) THEN 'whole'::text ELSE (SELECT string_agg(((jsonb_each_text.key || '='::text) || jsonb_each_text.value), ' '::text ORDER BY (jsonb_each_text.key COLLATE "C")) AS string_agg FROM jsonb_each_text(layout_text.layout) jsonb_each_text(key, value)) END;

CREATE OR REPLACE FUNCTION loads_image(fence_operation uuid)
 RETURNS boolean
 LANGUAGE sql
 STABLE
AS $function$
    SELECT fence_operation IS NOT NULL AND NOT EXISTS (SELECT FROM operations WHERE id = fence_operation AND kind = 'detach')
$function$;

CREATE OR REPLACE FUNCTION may_write()
 RETURNS boolean
 LANGUAGE sql
 STABLE
RETURN has_table_privilege(COALESCE((NULLIF(current_setting('role'::text), 'none'::text))::name, SESSION_USER), ('events'::regclass)::oid, 'INSERT'::text);

CREATE OR REPLACE FUNCTION next_assignment()
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    PERFORM require_writer();
    PERFORM feed_base();
    RETURN nextval('assignment_numbers');
END $function$;

CREATE OR REPLACE FUNCTION note_lifecycle()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.lifecycle_operation := nullif(current_setting('cyborg.operation', true), '')::uuid;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION note_update()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION nova_spec_given()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = NEW.uuid AND unclean <> '') THEN
        RAISE exclusion_violation USING TABLE = 'deployables', CONSTRAINT = 'attach_handles_excludes',
            HINT = 'A conductor has it cleaned; see its last operations.', MESSAGE = format('accelerator "%s" has still to be cleaned', NEW.accelerator);
    END IF;
    PERFORM check_given(NEW.uuid, NULL, NULL, NULL, 'deployables');
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION number_transaction()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    IF coalesce(current_setting('cyborg.transaction', true), '') = '' THEN
        PERFORM set_config('cyborg.transaction', (feed_base() + pg_current_xact_id()::text::bigint)::text, true);
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION operations_inserted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', n.id::text, n.host, 'state', '', n.state, jsonb_build_object('kind', n.kind), n.id
    FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION operations_updated()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', n.id::text, n.host, e.axis, e.old, e.new, e.data, n.id
    FROM new_rows n JOIN old_rows o ON o.id = n.id CROSS JOIN LATERAL (VALUES
        (1, 'cancel', '', 'requested', NULL::jsonb, o.cancel_at IS NULL AND n.cancel_at IS NOT NULL),
        (2, 'steps', '', '', jsonb_build_object('steps', n.steps), o.steps <> n.steps),
        (3, 'state', o.state, n.state, jsonb_strip_nulls(jsonb_build_object('kind', n.kind, 'error', n.error, 'result', n.result)),
            o.state <> n.state)) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION other_card(a jsonb, b jsonb)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN (COALESCE(((a ->> 'model'::text) <> (b ->> 'model'::text)), false) OR COALESCE(((a ->> 'serial'::text) <> (b ->> 'serial'::text)), false));

CREATE OR REPLACE FUNCTION partitioned_added()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT n.uuid, v.partition_operation FROM new_rows n JOIN devices v ON v.uuid = n.device_uuid
    WHERE v.partition_operation IS NOT NULL ORDER BY n.uuid ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION partitioned_moved()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT NEW.uuid, partition_operation FROM devices WHERE uuid = NEW.device_uuid AND partition_operation IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION partitioned_released()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT d.uuid, v.partition_operation FROM old_rows o JOIN deployables d ON d.uuid = o.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
    WHERE v.partition_operation <> o.operation_id ORDER BY d.uuid ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION pending_image_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'pending_image', coalesce(OLD.pending_image ->> 'bitstream_id', ''),
            coalesce(NEW.pending_image ->> 'bitstream_id', ''),
            jsonb_strip_nulls(jsonb_build_object('until', coalesce(NEW.pending_image, OLD.pending_image) -> 'until', 'bitstream_id', NEW.bitstream_id)));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_claims_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    PERFORM placement_out_of_step(ARRAY(
        SELECT DISTINCT d.host FROM rows_changed c JOIN operations p ON p.id = c.operation_id
        JOIN operation_kinds k ON k.kind = p.kind AND k.closes_placement
        JOIN deployables d ON d.uuid = c.deployable_uuid));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_deployables_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    CASE TG_OP
    WHEN 'INSERT' THEN
        PERFORM placement_out_of_step(ARRAY(SELECT DISTINCT host FROM new_rows));
    WHEN 'DELETE' THEN
        PERFORM placement_out_of_step(ARRAY(SELECT DISTINCT host FROM old_rows));
    ELSE
        PERFORM placement_out_of_step(ARRAY(
            SELECT DISTINCT n.host FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
            WHERE (o.provider_uuid, o.name, o.local_name, o.specs -> 'num', o.attributes, o.attributes_set, o.lifecycle, o.administration, o.presence,
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL, o.same_holder, o.unready, o.excludes)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.local_name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL, n.same_holder, n.unready, n.excludes)));
    END CASE;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_drift_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    about    jsonb := jsonb_build_object('provider', NEW.provider_uuid, 'name', NEW.provider_name);
    repaired boolean := coalesce(NEW.repaired_at = NEW.last_found_at, false);
    was      text := '';
    is_now   text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
        repaired := repaired AND OLD.repaired_at IS DISTINCT FROM NEW.repaired_at;
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT NEW.subject_kind, NEW.subject_id, NEW.host, 'drift_' || NEW.class, e.old, e.new, e.data
    FROM (VALUES
        (1, '', NEW.detail, about, repaired AND was = ''),
        (2, CASE WHEN repaired AND was = '' THEN NEW.detail ELSE was END, is_now,
            CASE WHEN is_now = '' THEN about || jsonb_build_object('repaired', repaired) ELSE about END,
            repaired OR was <> is_now)) AS e (position, old, new, data, happened)
    WHERE e.happened ORDER BY e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_drift_found()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    SELECT 'accelerator', uuid::text INTO NEW.subject_kind, NEW.subject_id FROM deployables WHERE provider_uuid = NEW.provider_uuid;
    IF NOT FOUND AND NEW.provider_uuid = '00000000-0000-0000-0000-000000000000' THEN
        NEW.subject_kind := 'host';
        NEW.subject_id := NEW.host;
    ELSIF NOT FOUND THEN
        NEW.subject_kind := 'resource_provider';
        NEW.subject_id := NEW.provider_uuid::text;
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION placement_handles_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    PERFORM placement_out_of_step(ARRAY(
        SELECT DISTINCT n.host FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
        LEFT JOIN operations p ON p.id = coalesce(n.operation_id, o.operation_id)
        WHERE o.presence <> n.presence
           OR (o.holder_kind IS NULL) <> (n.holder_kind IS NULL)
              AND (coalesce(p.kind, '') <> 'bind' OR coalesce(n.holder_kind, o.holder_kind) <> 'instance')
           OR (o.holder_kind IS NULL, o.unconfirmed_kind IS NULL) <> (n.holder_kind IS NULL, n.unconfirmed_kind IS NULL)
              AND (EXISTS ( -- this other was not closed before, or is so no longer
                  SELECT FROM excluded_with(n.deployable_uuid) AS e WHERE NOT EXISTS (
                      SELECT FROM excluded_with(e) AS x JOIN attach_handles h ON h.deployable_uuid = x
                      WHERE h.uuid <> n.uuid AND coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL
                        AND NOT EXISTS (SELECT FROM old_rows b WHERE b.uuid = h.uuid AND coalesce(b.holder_kind, b.unconfirmed_kind) IS NULL))) OR EXISTS (
                  SELECT FROM deployables d WHERE d.uuid = n.deployable_uuid AND d.same_holder <> ''
                    AND (EXISTS (SELECT FROM deployables s WHERE s.host = d.host AND s.same_holder = d.same_holder AND s.same_holder <> '' AND s.uuid <> d.uuid)
                      OR EXISTS (SELECT FROM attach_handles h WHERE h.deployable_uuid = d.uuid AND h.uuid <> n.uuid))))));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_hosts_inserted()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO placement_sync (host, compared_at)
    SELECT n.name, now() - random() * f.compare_every FROM new_rows n CROSS JOIN placement_following f ORDER BY n.name
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_out_of_step(hosts text[])
 RETURNS void
 LANGUAGE sql
AS $function$
    UPDATE placement_sync
    SET wanted = wanted + 1, compare = false, try_at = NULL, since = coalesce(since, clock_timestamp())
    WHERE host = ANY(hosts)
$function$;

CREATE OR REPLACE FUNCTION placement_settlement_failed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM placement_out_of_step(ARRAY[OLD.host]);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION placement_unclean_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM placement_out_of_step(ARRAY[NEW.host]);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION preparation_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'reported', '', '', jsonb_build_object('preparation', NEW.preparation));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION read_before(transaction xid8)
 RETURNS xid8
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
    SELECT coalesce(CASE
        WHEN server_started = pg_postmaster_start_time() AND relation = tableoid AND NOT pg_is_in_recovery()
            AND $1 >= (base + pg_snapshot_xmax(pg_current_snapshot())::text::bigint)::text::xid8 THEN first END,
        9223372036854775807)::text::xid8
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$function$;

CREATE OR REPLACE FUNCTION refuse_handover()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'a claim is taken and released, never handed over' USING ERRCODE = 'integrity_constraint_violation';
END $function$;

CREATE OR REPLACE FUNCTION require_writer()
 RETURNS void
 LANGUAGE plpgsql
 STABLE
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    IF NOT may_write() THEN
        RAISE insufficient_privilege USING MESSAGE = 'the role may read the records, and not change them';
    END IF;
END $function$;

CREATE OR REPLACE FUNCTION run_corrected()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', NEW.id::text, NEW.host, e.axis, e.old, e.new, e.data, NEW.id
    FROM (VALUES
        (1, 'stray_run', OLD.stray_run, NEW.stray_run, jsonb_build_object('run', NEW.run_id), OLD.stray_run <> NEW.stray_run),
        (2, 'cancel', 'requested', 'repeated', NULL::jsonb, OLD.cancel_repeated_at IS NULL AND NEW.cancel_repeated_at IS NOT NULL)
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY e.position;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION same_holder_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'same_holder', OLD.same_holder, NEW.same_holder);
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION stronger_cleaning(a text, b text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (cleaning_strength(a) >= cleaning_strength(b)) THEN a ELSE b END;

CREATE OR REPLACE FUNCTION unheard_for(heard_epoch integer, last_seen timestamp with time zone)
 RETURNS interval
 LANGUAGE plpgsql
 STABLE SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    RETURN (SELECT CASE
        WHEN server_started <> pg_postmaster_start_time() OR relation <> tableoid THEN interval '0' -- nobody has begun the epoch yet
        WHEN epoch IS DISTINCT FROM heard_epoch THEN clock_timestamp() - greatest(last_seen, began_at) END
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
END $function$;

CREATE OR REPLACE FUNCTION uninstall_pending_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid, NEW.host, 'installation',
        CASE WHEN OLD.uninstall_pending_since IS NULL THEN '' ELSE 'uninstall_pending' END,
        CASE WHEN NEW.uninstall_pending_since IS NULL THEN '' ELSE 'uninstall_pending' END, '{}');
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION unreadable_from()
 RETURNS xid8
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO '$user', 'public'
AS $function$
    SELECT (CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid OR pg_is_in_recovery()
        THEN base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        ELSE 9223372036854775807 END)::text::xid8
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$function$;

CREATE OR REPLACE FUNCTION whitelist_drift_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    was    text := '';
    is_now text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'host', NEW.host, NEW.host, 'drift_nova_whitelist', was, is_now, CASE WHEN is_now = '' THEN '{"repaired": false}'::jsonb END
    WHERE was <> is_now;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION writers_begin_epochs()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO '$user', 'public'
AS $function$
BEGIN
    PERFORM require_writer();
    RETURN NULL;
END $function$;
