-- +goose Up

-- Why a host has not corrected an attachment: its own words in the last round of Reconcile that has failed there; empty where
-- none has.
ALTER TABLE pending_settlements ADD COLUMN error text NOT NULL DEFAULT '';
