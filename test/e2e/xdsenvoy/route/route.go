package route

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/match"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
)

// Route is what is done with requests that match.
type Route struct {
	Name string
	// Direct answers without an upstream; 0: no.
	Direct   int
	Body     string
	Redirect func(r *http.Request) (location string, status int)
	Timeout  time.Duration // 0: none
	Retries  int
	Fault    *Fault // may be nil

	conditions []match.Request
	clusters   []weighted
	total      uint64
	prefix     string // or the path, that a rewrite replaces
	rewrite    func(r *http.Request)
	edits      edits
}

type weighted struct {
	name   string
	weight uint64
	edits  edits
}

// Match is a route that was found, with the cluster that was drawn.
type Match struct {
	*Route
	Cluster string
	edits   []edits
}

// defaultTimeout is Envoy's, of a route without one.
const defaultTimeout = 15 * time.Second

func newRoute(m *routev3.Route, board *notice.Board) (*Route, error) {
	board.Fields(m.GetName(), m, "name", "match", "route", "redirect", "direct_response", "decorator", "metadata", "typed_per_filter_config",
		"request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove")
	r := &Route{Name: m.GetName(), edits: newEdits(m)}
	if err := r.readConditions(m.GetMatch()); err != nil {
		return nil, err
	}
	for name, config := range m.GetTypedPerFilterConfig() {
		if name != faultFilter {
			board.Unknown(m.GetName(), "filter "+name+" of a route")
			continue
		}
		var err error
		if r.Fault, err = newFault(config); err != nil {
			return nil, err
		}
	}
	switch action := m.GetAction().(type) {
	case *routev3.Route_Route:
		return r, r.readAction(action.Route, board)
	case *routev3.Route_DirectResponse:
		r.Direct, r.Body = int(action.DirectResponse.GetStatus()), action.DirectResponse.GetBody().GetInlineString()
	case *routev3.Route_Redirect:
		r.readRedirect(action.Redirect)
	default:
		return nil, fmt.Errorf("action %T is not understood", action)
	}
	return r, nil
}

func (r *Route) readConditions(m *routev3.RouteMatch) error {
	r.prefix = m.GetPrefix() + m.GetPath() + m.GetPathSeparatedPrefix() // one of them is set
	path, err := newPath(m)
	if err != nil {
		return err
	}
	r.conditions = append(r.conditions, path)
	for _, h := range m.GetHeaders() {
		is, err := match.NewHeader(h)
		if err != nil {
			return err
		}
		r.conditions = append(r.conditions, is)
	}
	for _, q := range m.GetQueryParameters() {
		is, err := match.NewQuery(q)
		if err != nil {
			return err
		}
		r.conditions = append(r.conditions, is)
	}
	if m.GetGrpc() != nil {
		r.conditions = append(r.conditions, func(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") })
	}
	return nil
}

func newPath(m *routev3.RouteMatch) (match.Request, error) {
	fold := func(s string) string { return s }
	if m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue() {
		fold = strings.ToLower
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return func(r *http.Request) bool { return strings.HasPrefix(fold(match.Path(r)), fold(p.Prefix)) }, nil
	case *routev3.RouteMatch_Path:
		return func(r *http.Request) bool { return fold(match.Path(r)) == fold(p.Path) }, nil
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return func(r *http.Request) bool {
			rest, ok := strings.CutPrefix(fold(match.Path(r)), fold(p.PathSeparatedPrefix))
			return ok && (rest == "" || rest[0] == '/')
		}, nil
	case *routev3.RouteMatch_SafeRegex:
		is, err := match.NewRegex(p.SafeRegex)
		return func(r *http.Request) bool { return is(match.Path(r)) }, err
	}
	return nil, fmt.Errorf("path match %T is not understood", m.GetPathSpecifier())
}

func (r *Route) readAction(m *routev3.RouteAction, board *notice.Board) error {
	board.Fields(r.Name, m, "cluster", "weighted_clusters", "timeout", "retry_policy", "max_grpc_timeout", "max_stream_duration", "prefix_rewrite", "regex_rewrite",
		"host_rewrite_literal", "auto_host_rewrite", "upgrade_configs", "cluster_not_found_response_code")
	r.Timeout = defaultTimeout
	if m.GetTimeout() != nil {
		r.Timeout = m.GetTimeout().AsDuration()
	}
	if policy := m.GetRetryPolicy(); policy != nil {
		r.Retries = 1
		if n := policy.GetNumRetries(); n != nil {
			r.Retries = int(n.GetValue())
		}
	}
	switch c := m.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
		r.clusters = []weighted{{name: c.Cluster, weight: 1}}
	case *routev3.RouteAction_WeightedClusters:
		for _, w := range c.WeightedClusters.GetClusters() {
			r.clusters = append(r.clusters, weighted{name: w.GetName(), weight: uint64(w.GetWeight().GetValue()), edits: newEdits(w)})
		}
	default:
		return fmt.Errorf("cluster specifier %T is not understood", c)
	}
	for _, w := range r.clusters {
		r.total += w.weight
	}
	if r.total == 0 {
		return fmt.Errorf("clusters of route %q have no weight", r.Name)
	}
	return r.readRewrite(m)
}

// choose draws a cluster by weight.
func (r *Route) choose(outer ...edits) *Match {
	m := &Match{Route: r, edits: append([]edits{r.edits}, outer...)}
	if r.total == 0 {
		return m
	}
	n := rand.Uint64N(r.total) //nolint:gosec // no secret
	for _, w := range r.clusters {
		if n < w.weight {
			m.Cluster, m.edits = w.name, append([]edits{w.edits}, m.edits...)
			break
		}
		n -= w.weight
	}
	return m
}

func (r *Route) matches(request *http.Request) bool {
	for _, is := range r.conditions {
		if !is(request) {
			return false
		}
	}
	return true
}

func (r *Route) readRedirect(m *routev3.RedirectAction) {
	status := map[routev3.RedirectAction_RedirectResponseCode]int{
		routev3.RedirectAction_MOVED_PERMANENTLY: 301, routev3.RedirectAction_FOUND: 302, routev3.RedirectAction_SEE_OTHER: 303,
		routev3.RedirectAction_TEMPORARY_REDIRECT: 307, routev3.RedirectAction_PERMANENT_REDIRECT: 308,
	}[m.GetResponseCode()]
	r.Redirect = func(request *http.Request) (string, int) {
		u := *request.URL
		u.Scheme, u.Host = "http", request.Host
		if m.GetHttpsRedirect() {
			u.Scheme = "https"
		}
		if s := m.GetSchemeRedirect(); s != "" {
			u.Scheme = s
		}
		if h := m.GetHostRedirect(); h != "" {
			u.Host = h
		}
		if p := m.GetPathRedirect(); p != "" {
			u.Path = p
		}
		return u.String(), status
	}
}
