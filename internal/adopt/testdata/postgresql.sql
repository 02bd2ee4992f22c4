-- OpenStack Cyborg's schema at alembic head 6c77bd6afea5, as its models say it, in PostgreSQL.
CREATE TABLE alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('6c77bd6afea5');
CREATE TYPE device_type AS ENUM ('GPU', 'FPGA', 'AICHIP', 'QAT', 'NIC', 'SSD');
CREATE TYPE device_status AS ENUM ('enabled', 'maintaining');
CREATE TYPE cpid_type AS ENUM ('PCI');
CREATE TYPE attach_type AS ENUM ('PCI', 'MDEV', 'TEST_PCI');
CREATE TYPE state AS ENUM ('Initial', 'BindStarted', 'Bound', 'Unbound', 'BindFailed', 'Deleting');
CREATE TYPE substate AS ENUM ('Initial');
CREATE TABLE devices (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE, type device_type NOT NULL,
  vendor varchar(255) NOT NULL, model varchar(255) NOT NULL, std_board_info text, vendor_board_info text, hostname varchar(255) NOT NULL,
  status device_status NOT NULL
);
CREATE TABLE deployables (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE,
  parent_id integer REFERENCES deployables, root_id integer REFERENCES deployables, name varchar(255) NOT NULL,
  num_accelerators integer NOT NULL, device_id integer NOT NULL REFERENCES devices ON DELETE RESTRICT, rp_uuid varchar(36),
  driver_name varchar(100), bitstream_id varchar(36)
);
CREATE TABLE attributes (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE,
  deployable_id integer NOT NULL REFERENCES deployables ON DELETE RESTRICT, key text NOT NULL, value text NOT NULL
);
CREATE TABLE controlpath_ids (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE,
  device_id integer NOT NULL REFERENCES devices ON DELETE RESTRICT, cpid_type cpid_type NOT NULL, cpid_info varchar(255) NOT NULL
);
CREATE TABLE attach_handles (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE,
  deployable_id integer NOT NULL REFERENCES deployables ON DELETE RESTRICT, cpid_id integer NOT NULL REFERENCES controlpath_ids ON DELETE RESTRICT,
  in_use boolean, attach_type attach_type NOT NULL, attach_info varchar(255) NOT NULL
);
CREATE TABLE device_profiles (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL, name varchar(255) NOT NULL UNIQUE,
  profile_json text NOT NULL, description text, CONSTRAINT uniq_device_profiles0uuid0name UNIQUE (uuid, name)
);
CREATE TABLE extended_accelerator_requests (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE, project_id varchar(255),
  state state NOT NULL, device_profile_id integer NOT NULL REFERENCES device_profiles ON DELETE RESTRICT,
  device_profile_group_id integer NOT NULL, hostname varchar(255), device_rp_uuid varchar(36), instance_uuid varchar(36),
  attach_handle_id integer REFERENCES attach_handles ON DELETE RESTRICT, substate substate NOT NULL,
  deployable_id integer REFERENCES deployables ON DELETE RESTRICT
);
CREATE TABLE quota_usages (
  created_at timestamp, updated_at timestamp, id serial PRIMARY KEY, project_id varchar(255), user_id varchar(255),
  resource varchar(255) NOT NULL, in_use integer NOT NULL, reserved integer NOT NULL, until_refresh integer
);
