-- +goose Up

-- The query of an image's URL may be a signature with which everybody can fetch the image. It is kept
-- only while its operation runs. Release 0.1 kept it with the operation, and with the image that was
-- loaded, which the host keeps itself.
UPDATE operations
SET input = jsonb_set(input, '{image,source}', to_jsonb(regexp_replace(split_part(input #>> '{image,source}', '#', 1), '\?.*', '?…')))
WHERE kind = 'program' AND NOT open AND input #>> '{image,source}' LIKE '%://%?%';

UPDATE deployables
SET image = jsonb_set(image, '{source}', to_jsonb(regexp_replace(split_part(image ->> 'source', '#', 1), '\?.*', '?…')))
WHERE image ->> 'source' LIKE '%://%?%';
