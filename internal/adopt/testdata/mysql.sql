-- OpenStack Cyborg's schema at alembic head 6c77bd6afea5, as its migrations leave it in MySQL.
CREATE TABLE alembic_version (version_num varchar(32) NOT NULL, PRIMARY KEY (version_num));
INSERT INTO alembic_version VALUES ('6c77bd6afea5');
CREATE TABLE devices (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  type enum('GPU','FPGA','AICHIP','QAT','NIC','SSD') NOT NULL, vendor varchar(255) NOT NULL, model varchar(255) NOT NULL,
  std_board_info text, vendor_board_info text, hostname varchar(255) NOT NULL, status enum('enabled','maintaining') NOT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE deployables (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  parent_id int(11) DEFAULT NULL, root_id int(11) DEFAULT NULL, name varchar(255) NOT NULL, num_accelerators int(11) NOT NULL,
  device_id int(11) NOT NULL, rp_uuid varchar(36) DEFAULT NULL, driver_name varchar(100) DEFAULT NULL, bitstream_id varchar(36) DEFAULT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid), KEY deployables_device_id_idx (device_id),
  FOREIGN KEY (device_id) REFERENCES devices (id), FOREIGN KEY (parent_id) REFERENCES deployables (id) ON DELETE CASCADE,
  FOREIGN KEY (root_id) REFERENCES deployables (id) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE attributes (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  deployable_id int(11) NOT NULL, `key` text NOT NULL, value text NOT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid), FOREIGN KEY (deployable_id) REFERENCES deployables (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE controlpath_ids (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  device_id int(11) NOT NULL, cpid_type enum('PCI') NOT NULL, cpid_info varchar(255) NOT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid), FOREIGN KEY (device_id) REFERENCES devices (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE attach_handles (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  deployable_id int(11) NOT NULL, cpid_id int(11) NOT NULL, in_use tinyint(1) DEFAULT NULL,
  attach_type enum('PCI','MDEV','TEST_PCI') NOT NULL, attach_info varchar(255) NOT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid), FOREIGN KEY (deployable_id) REFERENCES deployables (id),
  FOREIGN KEY (cpid_id) REFERENCES controlpath_ids (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE device_profiles (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  name varchar(255) NOT NULL, profile_json text NOT NULL, description text,
  PRIMARY KEY (id), UNIQUE KEY uniq_device_profiles0uuid (uuid), UNIQUE KEY uniq_device_profiles0name (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE extended_accelerator_requests (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, uuid varchar(36) NOT NULL,
  project_id varchar(255) DEFAULT NULL, state enum('Initial','BindStarted','Bound','Unbound','BindFailed','Deleting') NOT NULL,
  device_profile_id int(11) NOT NULL, hostname varchar(255) DEFAULT NULL, device_rp_uuid varchar(36) DEFAULT NULL,
  attach_handle_id int(11) DEFAULT NULL, substate enum('Initial') NOT NULL, deployable_id int(11) DEFAULT NULL,
  device_profile_group_id int(11) NOT NULL, instance_uuid varchar(36) DEFAULT NULL,
  PRIMARY KEY (id), UNIQUE KEY uuid (uuid), FOREIGN KEY (device_profile_id) REFERENCES device_profiles (id),
  FOREIGN KEY (attach_handle_id) REFERENCES attach_handles (id), FOREIGN KEY (deployable_id) REFERENCES deployables (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE quota_usages (
  created_at datetime DEFAULT NULL, updated_at datetime DEFAULT NULL, id int(11) NOT NULL AUTO_INCREMENT, project_id varchar(255) DEFAULT NULL,
  user_id varchar(255) DEFAULT NULL, resource varchar(255) NOT NULL, in_use int(11) NOT NULL, reserved int(11) NOT NULL,
  until_refresh int(11) DEFAULT NULL, PRIMARY KEY (id)
) ENGINE=InnoDB;
