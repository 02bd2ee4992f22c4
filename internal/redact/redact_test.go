package redact_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/redact"
)

func TestNamesOfSecrets(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"password", "BMC_PASSWORD", "bmcPassword2", "password_file", "api-token", "apitoken", "token", "tokens", "api_tokens", "sshKey", "SSHKey",
		"APIkey", "tls.key", "private_key", "privatekey", "ssh private", "bmc_pass", "basic_auth", "Authorization", "aws_secret_access_key_id",
		"passwords", "bmc_passwords", "passphrases", "apikeys", "apitokens", "authkey", "snmp_authkey", "authPass", "private_key_pem", "privateKeyData",
		"tls_private_pem", "secretid", "tokenValue", "token_v2", "tokenv2",
	} {
		require.Equal(t, map[string]any{secret: redact.Mask}, redact.Options(map[string]any{secret: "canary"}))
		require.Equal(t, []string{secret}, redact.Secrets(map[string]any{secret: "canary"}))
	}

	harmless := map[string]any{
		"max_tokens": 5, "authority": "a", "author": "b", "private_network": "c", "monkey": "d", "key_count": 1, "compass": "e", "": "f", "--": "g", "2": "h",
		"address": "http://bmc/a", "mail": "a@b",
	}
	require.Equal(t, harmless, redact.Options(harmless))
	require.Empty(t, redact.Secrets(harmless))
}

// A URL's user and password are masked even if it is no URL, and as other
// secrets are, so that nobody can send them back.
func TestUsersOfURLs(t *testing.T) {
	t.Parallel()
	for url, masked := range map[string]string{
		"https://admin:canary@bmc/":        "https://******@bmc/",
		"https://admin:se%canary@bmc/":     "https://******@bmc/",
		"postgres://u:p canary@h/":         "postgres://******@h/",
		"https://canary@bmc/":              "https://******@bmc/",
		"//admin:canary@bmc/":              "//******@bmc/",
		"https://admin:can@ary/?#x@bmc/":   "https://******@bmc/",
		"https://u:p@a/ and https://v:q@b": "https://******@b",
	} {
		given := map[string]any{"at": []any{url, map[string]any{"url": url}}}
		require.Equal(t, map[string]any{"at": []any{masked, map[string]any{"url": masked}}}, redact.Options(given))
		require.Equal(t, []string{"at", "at.url"}, redact.Secrets(given))
	}
}

// A secret is found wherever it is, also in JSON within a text, and where it is
// masked already.
func TestSecretsWithinOptions(t *testing.T) {
	t.Parallel()
	given := map[string]any{
		"park": "visible", "count": 3, "text": `{"park": "visible"}`, "broken": `{"password"`,
		"bmc":  map[string]any{"address": "a", "token": "canary", "more": []any{map[string]any{"sshKey": "canary"}}},
		"spec": `[{"address": "a", "password": "canary"}]`, "list": []any{`{"at": "https://u:canary@h/"}`},
		"shown": map[string]any{"spec": redact.Mask},
	}
	require.Equal(t, []string{"bmc.more.sshKey", "bmc.token", "list.at", "shown.spec", "spec.password"}, redact.Secrets(given))

	require.Equal(t, map[string]any{
		"park": "visible", "count": 3, "text": `{"park": "visible"}`, "broken": `{"password"`,
		"bmc":  map[string]any{"address": "a", "token": redact.Mask, "more": []any{map[string]any{"sshKey": redact.Mask}}},
		"spec": redact.Mask, "list": []any{redact.Mask}, "shown": map[string]any{"spec": redact.Mask},
	}, redact.Options(given))
	require.Empty(t, redact.Secrets(nil))
}
