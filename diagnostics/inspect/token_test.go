package inspect

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestTheTokenIsTheOneThatRequestsCarry(t *testing.T) {
	dir := t.TempDir()
	file, plugin := filepath.Join(dir, "token"), filepath.Join(dir, "plugin")
	script := "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"of-plugin\"}}'\n"
	for path, text := range map[string]string{file: "of-file\n", plugin: script} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const host = "https://127.0.0.1:1"
	for name, tc := range map[string]struct {
		in      *rest.Config
		want    string
		wantErr string
	}{
		"a token":          {in: &rest.Config{Host: host, BearerToken: "plain"}, want: "plain"},
		"the file of one":  {in: &rest.Config{Host: host, BearerTokenFile: file}, want: "of-file"},
		"a plugin's token": {in: &rest.Config{Host: host, ExecProvider: execProvider(plugin)}, want: "of-plugin"},
		"a wrapper's, such as those of clouds": {in: &rest.Config{Host: host, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("Authorization", "Bearer of-cloud")
				return next.RoundTrip(r)
			})
		}}, want: "of-cloud"},
		"nothing":            {in: &rest.Config{Host: host}, wantErr: "kubectl create token"},
		"a password":         {in: &rest.Config{Host: host, Username: "a", Password: "b"}, wantErr: "kubectl create token"},
		"somebody else's":    {in: &rest.Config{Host: host, BearerToken: "plain", Impersonate: rest.ImpersonationConfig{UserName: "boss"}}, wantErr: `acts as "boss"`},
		"a plugin that ends": {in: &rest.Config{Host: host, ExecProvider: execProvider("/bin/false")}, wantErr: "credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Token(tc.in)
			if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("token %q, error %v; want %q, %q", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func execProvider(program string) *clientcmdapi.ExecConfig {
	return &clientcmdapi.ExecConfig{Command: program, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
