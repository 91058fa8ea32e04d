package rbac

import (
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// fromClient is a policy as istiod makes it: of a source and an operation.
const fromClient = `{"permissions": [{"andRules": {"rules": [
  {"orRules": {"rules": [{"urlPath": {"path": {"prefix": "/admin"}}}]}},
  {"notRule": {"orRules": {"rules": [{"header": {"name": ":method", "stringMatch": {"exact": "HEAD"}}}]}}},
  {"orRules": {"rules": [{"destinationPort": 8080}]}}]}}],
 "principals": [{"andIds": {"ids": [{"orIds": {"ids": [{"authenticated": {"principalName": {"exact": "spiffe://cluster.local/ns/default/sa/client"}}}]}}]}}]}`

func read(t *testing.T, text string) *rbacv3.RBAC {
	t.Helper()
	m := &rbacv3.RBAC{}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAllowed(t *testing.T) {
	const client = "spiffe://cluster.local/ns/default/sa/client"
	type ask struct {
		method, path, name string
		port               uint16
	}
	for name, c := range map[string]struct {
		rules string
		ask   ask
		want  bool
	}{
		"what a denial names":               {`{"action": "DENY", "policies": {"p": ` + fromClient + `}}`, ask{"GET", "/admin/x", client, 8080}, false},
		"another path":                      {`{"action": "DENY", "policies": {"p": ` + fromClient + `}}`, ask{"GET", "/", client, 8080}, true},
		"another method":                    {`{"action": "DENY", "policies": {"p": ` + fromClient + `}}`, ask{"HEAD", "/admin", client, 8080}, true},
		"another port":                      {`{"action": "DENY", "policies": {"p": ` + fromClient + `}}`, ask{"GET", "/admin", client, 8081}, true},
		"another client":                    {`{"action": "DENY", "policies": {"p": ` + fromClient + `}}`, ask{"GET", "/admin", "spiffe://other", 8080}, true},
		"what a permission names":           {`{"policies": {"p": ` + fromClient + `}}`, ask{"GET", "/admin", client, 8080}, true},
		"what it does not name":             {`{"policies": {"p": ` + fromClient + `}}`, ask{"GET", "/", client, 8080}, false},
		"no policy of a permission":         {`{"policies": {}}`, ask{"GET", "/", client, 8080}, false},
		"a permission with an unknown part": {`{"policies": {"p": {"permissions": [{"any": true}], "principals": [{"metadata": {"filter": "jwt"}}]}}}`, ask{"GET", "/", client, 8080}, false},
		"a denial with an unknown part":     {`{"action": "DENY", "policies": {"p": {"permissions": [{"any": true}], "principals": [{"notId": {"metadata": {"filter": "jwt"}}}]}}}`, ask{"GET", "/", client, 8080}, false},
		"a namespace": {
			`{"policies": {"p": {"permissions": [{"any": true}], "principals": [{"authenticated": {"principalName": {"safeRegex": {"regex": ".*/ns/default/.*"}}}}]}}}`,
			ask{"GET", "/", client, 8080},
			true,
		},
		"addresses": {`{"policies": {"p": {"permissions": [{"any": true}], "principals": [{"directRemoteIp": {"addressPrefix": "10.0.0.0", "prefixLen": 8}}]}}}`, ask{"GET", "/", "", 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Subject{
				Request: httptest.NewRequest(c.ask.method, c.ask.path, nil), Names: []string{c.ask.name},
				Source: netip.MustParseAddr("10.1.1.1"), Target: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), c.ask.port),
			}
			if got, policy := New(read(t, c.rules), slog.New(slog.DiscardHandler)).Allowed(s); got != c.want {
				t.Errorf("allowed is %v by %q, want %v", got, policy, c.want)
			}
		})
	}
}

// A dry run has shadow rules alone, and bytes have no path: a policy for requests does not allow them.
func TestAllowed_withoutRulesOrRequest(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if ok, _ := New(nil, log).Allowed(Subject{}); !ok {
		t.Error("a dry run denies")
	}
	if ok, _ := New(read(t, `{"policies": {"p": `+fromClient+`}}`), log).Allowed(Subject{}); ok {
		t.Error("bytes are allowed by a policy for requests")
	}
}
