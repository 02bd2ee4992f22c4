INSERT INTO devices (created_at, updated_at, id, uuid, type, vendor, model, std_board_info, vendor_board_info, hostname, status) VALUES
  ('2025-03-01 10:00:00', NULL, 1, 'd0000000-0000-4000-8000-000000000001', 'FPGA', '0xABCD', 'miss model info', '{"device_id": "0xabcd", "class": "Fake class", "product_id": "0xfa01"}', 'fake_vendor_info', 'compute1.example.org', 'enabled'),
  ('2025-03-01 10:00:00', '2025-03-02 11:00:00', 2, 'd0000000-0000-4000-8000-000000000002', 'GPU', '10de', '1eb8', NULL, NULL, 'compute2.example.org', 'maintaining');
INSERT INTO controlpath_ids (created_at, id, uuid, device_id, cpid_type, cpid_info) VALUES
  ('2025-03-01 10:00:00', 1, 'c0000000-0000-4000-8000-000000000001', 1, 'PCI', '{"bus": "0c", "device": "0", "domain": "0000", "function": "0"}'),
  ('2025-03-01 10:00:00', 2, 'c0000000-0000-4000-8000-000000000002', 2, 'PCI', '{"bus": "3b", "device": "00", "domain": "0000", "function": "0"}');
INSERT INTO deployables (created_at, id, uuid, parent_id, root_id, name, num_accelerators, device_id, rp_uuid, driver_name, bitstream_id) VALUES
  ('2025-03-01 10:00:00', 1, 'e0000000-0000-4000-8000-000000000001', NULL, NULL, 'compute1_FakeDevice', 3, 1, '7c1a9f9e-0b6e-3a34-9d0f-0123456789ab', 'fake', 'b069d97a-010a-4057-b70d-eca2b337fc9c'),
  ('2025-03-01 10:00:00', 2, 'e0000000-0000-4000-8000-000000000002', NULL, NULL, 'compute2_0000:3b:00.0', 1, 2, NULL, 'NVIDIA', NULL);
INSERT INTO attributes (created_at, id, uuid, deployable_id, "key", value) VALUES
  ('2025-03-01 10:00:00', 1, 'a0000000-0000-4000-8000-000000000001', 1, 'rc', 'FPGA'),
  ('2025-03-01 10:00:00', 2, 'a0000000-0000-4000-8000-000000000002', 1, 'traits1', 'CUSTOM_FAKE_DEVICE'),
  ('2025-03-01 10:00:00', 3, 'a0000000-0000-4000-8000-000000000003', 1, 'rack', 'b7'),
  ('2025-03-01 10:00:00', 4, 'a0000000-0000-4000-8000-000000000004', 2, 'rc', 'PGPU');
INSERT INTO attach_handles (created_at, updated_at, id, uuid, deployable_id, cpid_id, in_use, attach_type, attach_info) VALUES
  ('2025-03-01 10:00:00', '2025-03-03 12:00:00', 1, 'f0000000-0000-4000-8000-000000000001', 1, 1, true, 'TEST_PCI', '{"bus": "0c", "device": "0", "domain": "0000", "function": "1"}'),
  ('2025-03-01 10:00:00', NULL, 2, 'f0000000-0000-4000-8000-000000000002', 1, 1, false, 'TEST_PCI', '{"bus": "0c", "device": "0", "domain": "0000", "function": "2"}'),
  ('2025-03-01 10:00:00', NULL, 3, 'f0000000-0000-4000-8000-000000000003', 1, 1, true, 'TEST_PCI', '{"bus": "0c", "device": "0", "domain": "0000", "function": "3"}'),
  ('2025-03-01 10:00:00', NULL, 4, 'f0000000-0000-4000-8000-000000000004', 2, 2, NULL, 'PCI', '{"bus": "3b", "device": "00", "domain": "0000", "function": "0", "physical_network": "physnet1"}');
INSERT INTO device_profiles (created_at, updated_at, id, uuid, name, profile_json, description) VALUES
  ('2025-03-01 09:00:00', NULL, 1, '10000000-0000-4000-8000-000000000001', 'fpga-aes', '{"groups": [{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}, {"resources:FPGA": "1"}]}', NULL),
  ('2025-03-01 09:00:00', '2025-03-01 09:30:00', 2, '10000000-0000-4000-8000-000000000002', 'gpu', '{"groups": [{"resources:PGPU": "1"}]}', 'a whole one');
INSERT INTO extended_accelerator_requests (created_at, updated_at, id, uuid, project_id, state, device_profile_id, device_profile_group_id, hostname, device_rp_uuid, instance_uuid, attach_handle_id, substate, deployable_id) VALUES
  ('2025-03-03 11:59:00', '2025-03-03 12:00:00', 1, '20000000-0000-4000-8000-000000000001', 'c1ba1e0d0e1b4c7f8f8d1c0b7a6f5e4d', 'Bound', 1, 1, 'compute1.example.org', '7c1a9f9e-0b6e-3a34-9d0f-0123456789ab', '30000000-0000-4000-8000-000000000001', 1, 'Initial', 1),
  ('2025-03-03 11:59:00', NULL, 2, '20000000-0000-4000-8000-000000000002', NULL, 'Initial', 2, 0, NULL, NULL, NULL, NULL, 'Initial', NULL),
  ('2025-03-03 11:59:00', '2025-03-03 12:00:00', 3, '20000000-0000-4000-8000-000000000003', 'c1ba1e0d0e1b4c7f8f8d1c0b7a6f5e4d', 'BindStarted', 1, 0, 'compute1.example.org', '7c1a9f9e-0b6e-3a34-9d0f-0123456789ab', '30000000-0000-4000-8000-000000000002', NULL, 'Initial', NULL),
  ('2025-03-03 11:59:00', '2025-03-03 12:00:00', 4, '20000000-0000-4000-8000-000000000004', 'c1ba1e0d0e1b4c7f8f8d1c0b7a6f5e4d', 'Unbound', 1, 0, NULL, NULL, NULL, NULL, 'Initial', NULL);
