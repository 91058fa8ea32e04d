package route

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
)

const routes = `{"name": "80", "ignorePortInHostMatching": true, "virtualHosts": [
 {"name": "exact", "domains": ["reviews.default.svc.cluster.local", "reviews"], "routes": [
   {"name": "user", "match": {"prefix": "/", "headers": [{"name": "end-user", "stringMatch": {"exact": "jason"}}]}, "route": {"cluster": "v2", "timeout": "3s", "prefixRewrite": "/x/"},
    "requestHeadersToAdd": [{"header": {"key": "added", "value": "100%%"}}], "requestHeadersToRemove": ["end-user"]},
   {"name": "path", "match": {"path": "/exact"}, "route": {"cluster": "exact"}},
   {"name": "prefix", "match": {"pathSeparatedPrefix": "/api"}, "route": {"cluster": "api", "hostRewriteLiteral": "other"}},
   {"name": "query", "match": {"prefix": "/", "queryParameters": [{"name": "a", "stringMatch": {"exact": "b"}}]}, "directResponse": {"status": 418, "body": {"inlineString": "tea"}}},
   {"name": "rewritten", "match": {"safeRegex": {"regex": "/old/.*"}}, "route": {"cluster": "new", "regexRewrite": {"pattern": {"regex": "^/old/(.*)$"}, "substitution": "/new/\\1"}}},
   {"name": "gone", "match": {"prefix": "/gone"}, "redirect": {"pathRedirect": "/here", "responseCode": "FOUND"}}]},
 {"name": "suffix", "domains": ["*.example.com"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "suffix"}}]},
 {"name": "longer", "domains": ["*.a.example.com"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "longer"}}]},
 {"name": "prefixed", "domains": ["shop.*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "shop"}}]},
 {"name": "any", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "PassthroughCluster"}}]}]}`

func newTable(t *testing.T, text string) (*Table, error) {
	t.Helper()
	m := &routev3.RouteConfiguration{}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return New(m, &notice.Board{Log: slog.New(slog.DiscardHandler)})
}

func TestFind(t *testing.T) {
	table, err := newTable(t, routes)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ host, target, user, want string }{
		"a user":              {"reviews", "/a", "jason", "v2 /x/a reviews"},
		"a path":              {"reviews:80", "/exact", "", "exact /exact reviews:80"},
		"a longer path":       {"reviews", "/exact/not", "", ""},
		"a prefix":            {"Reviews", "/api/v1", "", "api /api/v1 other"},
		"the prefix itself":   {"reviews", "/api", "", "api /api other"},
		"no such prefix":      {"reviews", "/apix", "", ""},
		"an expression":       {"reviews", "/old/1", "", "new /new/1 reviews"},
		"a suffix":            {"b.example.com", "/", "", "suffix / b.example.com"},
		"the longest suffix":  {"b.a.example.com:8080", "/", "", "longer / b.a.example.com:8080"},
		"the suffix alone":    {"example.com", "/", "", "PassthroughCluster / example.com"},
		"a host by prefix":    {"shop.local", "/", "", "shop / shop.local"},
		"any host":            {"10.0.0.1", "/", "", "PassthroughCluster / 10.0.0.1"},
		"another full domain": {"reviews.default.svc.cluster.local", "/exact", "", "exact /exact reviews.default.svc.cluster.local"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, c.target, nil)
			r.Host = c.host
			r.Header.Set("End-User", c.user)
			m := table.Find(r)
			if m == nil {
				if c.want != "" {
					t.Errorf("no route, want %s", c.want)
				}
				return
			}
			m.EditRequest(r)
			if got := m.Cluster + " " + r.URL.Path + " " + r.Host; got != c.want {
				t.Errorf("it goes to %s, want %s", got, c.want)
			}
			if c.user != "" && (r.Header.Get("Added") != "100%" || r.Header.Get("End-User") != "") {
				t.Errorf("headers are %v", r.Header)
			}
		})
	}
}

func TestFind_withoutUpstream(t *testing.T) {
	table, err := newTable(t, routes)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "http://reviews/x?a=b", nil)
	if m := table.Find(r); m == nil || m.Direct != http.StatusTeapot || m.Body != "tea" {
		t.Errorf("found is %+v", m)
	}
	r = httptest.NewRequest(http.MethodGet, "http://reviews/gone/x", nil)
	m := table.Find(r)
	if m == nil || m.Redirect == nil {
		t.Fatalf("found is %+v", m)
	}
	if location, status := m.Redirect(r); location != "http://reviews/here" || status != http.StatusFound {
		t.Errorf("redirected to %s by %d", location, status)
	}
}

func TestFind_byWeight(t *testing.T) {
	table, err := newTable(t, `{"virtualHosts": [{"domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"weightedClusters": {"clusters": [
	  {"name": "v1", "weight": 90}, {"name": "v2", "weight": 10}, {"name": "never", "weight": 0}]}}}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for range 2000 {
		seen[table.Find(httptest.NewRequest(http.MethodGet, "/", nil)).Cluster]++
	}
	if seen["never"] > 0 || seen["v2"] < 100 || seen["v2"] > 320 { // 200 are expected, with a deviation of 13
		t.Errorf("drawn are %v", seen)
	}
}

func TestNew_refuses(t *testing.T) {
	for name, text := range map[string]string{
		"a match that it does not know":     `{"virtualHosts": [{"domains": ["*"], "routes": [{"match": {"connectMatcher": {}}, "route": {"cluster": "a"}}]}]}`,
		"clusters without weight":           `{"virtualHosts": [{"domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"weightedClusters": {"clusters": [{"name": "a"}]}}}]}]}`,
		"a cluster of the request's header": `{"virtualHosts": [{"domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"clusterHeader": "a"}}]}]}`,
		"an expression that is none":        `{"virtualHosts": [{"domains": ["*"], "routes": [{"match": {"safeRegex": {"regex": "("}}, "route": {"cluster": "a"}}]}]}`,
	} {
		if _, err := newTable(t, text); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
