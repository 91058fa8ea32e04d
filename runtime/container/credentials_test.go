package container

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// auths returns a Secret's value with one user for each registry.
func auths(servers ...string) []byte {
	var entries []string
	for _, s := range servers {
		entries = append(entries, `"`+s+`": {"username": "`+s+`", "password": "p"}`)
	}
	return []byte(`{"auths": {` + strings.Join(entries, ", ") + `}}`)
}

func TestFor_images_mostSpecificFirst(t *testing.T) {
	const hub = "https://index.docker.io/v1/"
	for name, c := range map[string]struct {
		servers []string
		image   string
		want    []string
	}{
		"the image's registry":             {[]string{"a.example", "b.example"}, "b.example/proxy:1", []string{"b.example"}},
		"an address with a scheme":         {[]string{"https://b.example/v2/"}, "b.example/proxy:1", []string{"https://b.example/v2/"}},
		"a registry with a port":           {[]string{"b.example:5000", "b.example"}, "b.example:5000/proxy:1", []string{"b.example:5000"}},
		"an address of IPv6":               {[]string{"[::1]:5000"}, "[::1]:5000/proxy", []string{"[::1]:5000"}},
		"the most specific first":          {[]string{"b.example", "b.example/team"}, "b.example/team/proxy@sha256:1", []string{"b.example/team", "b.example"}},
		"another team's":                   {[]string{"b.example/team"}, "b.example/teamwork/proxy", nil},
		"a pattern":                        {[]string{"*.b.example"}, "eu.b.example/proxy", []string{"*.b.example"}},
		"a pattern is for one label":       {[]string{"*.example"}, "eu.b.example/proxy", nil},
		"a malformed pattern":              {[]string{"[.example"}, "b.example/proxy", nil},
		"no registry is Docker Hub":        {[]string{hub, "b.example"}, "haproxy:1", []string{hub}},
		"a user's image of Docker Hub":     {[]string{hub}, "someone/haproxy:1", []string{hub}},
		"Docker Hub by name":               {[]string{"docker.io"}, "docker.io/library/haproxy", []string{"docker.io"}},
		"the node's own images":            {[]string{hub}, "localhost/haproxy:1", nil},
		"a host that only begins the same": {[]string{"b.example"}, "b.example.evil/proxy", nil},
	} {
		t.Run(name, func(t *testing.T) {
			credentials, err := ParseDockerConfig(auths(c.servers...))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range credentials.For(c.image) {
				got = append(got, a.Username)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseDockerConfig_forms_areRead(t *testing.T) {
	pair := base64.StdEncoding.EncodeToString([]byte("u:p:q"))
	for name, c := range map[string]struct {
		text string
		want Auth
	}{
		"user and password":    {`{"auths": {"b.example": {"username": "u", "password": "p"}}}`, Auth{Username: "u", Password: "p"}},
		"both in one":          {`{"auths": {"b.example": {"auth": "` + pair + `"}}}`, Auth{Username: "u", Password: "p:q"}},
		"both in one wins":     {`{"auths": {"b.example": {"username": "x", "auth": "` + pair + `"}}}`, Auth{Username: "u", Password: "p:q"}},
		"an identity token":    {`{"auths": {"b.example": {"identitytoken": "t"}}}`, Auth{IdentityToken: "t"}},
		"what is not for this": {`{"auths": {"b.example": {"username": "u", "email": "e"}}, "credsStore": "x"}`, Auth{Username: "u"}},
	} {
		got, err := ParseDockerConfig([]byte(c.text))
		if err != nil || len(got) != 1 || got[0].Auth != c.want {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

// What is wrong is said without repeating any of it.
func TestParseDockerConfig_malformed_saysNothingOfIt(t *testing.T) {
	const secret = "hunter2"
	for name, text := range map[string]string{ //nolint:gosec // it opens nothing
		"not JSON":                secret,
		"cut off":                 `{"auths": {"b.example": {"password": "` + secret,
		"a number for a password": `{"auths": {"b.example": {"password": 12345678}}}`,
		"a text for all":          `{"auths": "` + secret + `"}`,
		"no base64":               `{"auths": {"b.example": {"auth": "` + secret + `!"}}}`,
		"no user":                 `{"auths": {"b.example": {"auth": "` + base64.StdEncoding.EncodeToString([]byte(secret)) + `"}}}`,
		"no registry":             `{"auths": {}}`,
		"nothing":                 "",
		"the older form":          `{"b.example": {"password": "` + secret + `"}}`,
	} {
		got, err := ParseDockerConfig([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted: %d", name, len(got))
		} else if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "1234") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The request is the kubelet's: containerd leaves out credentials whose server address is not the host that it asks.
func TestPull_credentials_areSentWithoutServer(t *testing.T) {
	f, r := newFake(t, "containerd")
	f.accepts = "u"
	if err := r.Pull(t.Context(), "b.example/proxy:1", []Auth{{Username: "u", Password: "p"}}); err != nil {
		t.Fatal(err)
	}
	if got := f.pulls[0]; got.GetUsername() != "u" || got.GetPassword() != "p" || got.GetServerAddress() != "" {
		t.Errorf("sent %v", got)
	}
}

func TestPull_runtimeRepeatsCredentials_hidesThem(t *testing.T) {
	f, r := newFake(t, "containerd")
	pair := base64.StdEncoding.EncodeToString([]byte("u:hunter2"))
	f.errors["pull"] = status.Error(codes.Unknown, "GET https://u:hunter2@b.example (Basic "+pair+", token s3cret): 401 Unauthorized")
	err := r.Pull(t.Context(), "b.example/proxy:1", []Auth{{Username: "u", Password: "hunter2", IdentityToken: "s3cret"}})
	if !errors.Is(err, ErrNotPulled) || !strings.Contains(err.Error(), "401 Unauthorized") {
		t.Errorf("error %v", err)
	}
	for _, secret := range []string{"hunter2", pair, "s3cret"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in %v", secret, err)
		}
	}
}
