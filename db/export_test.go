package db

import "context"

// MigrateTo brings the schema up or down to a version.
func MigrateTo(ctx context.Context, url string, version int64) error {
	provider, err := migrator(url)
	if err != nil {
		return err
	}
	defer provider.Close()
	current, err := provider.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	switch {
	case version < current:
		_, err = provider.DownTo(ctx, version)
	case version > current:
		_, err = provider.UpTo(ctx, version)
	}
	return err
}

// Versions lists the versions of the schema, oldest first.
func Versions(url string) ([]int64, error) {
	provider, err := migrator(url)
	if err != nil {
		return nil, err
	}
	defer provider.Close()
	var out []int64
	for _, source := range provider.ListSources() {
		out = append(out, source.Version)
	}
	return out, nil
}
