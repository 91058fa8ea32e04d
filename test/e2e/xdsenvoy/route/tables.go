// Package route finds where a request goes: route configurations with virtual hosts, matches and weighted clusters.
package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
)

// Tables are the discovered route configurations.
type Tables struct {
	board *notice.Board

	mu      sync.Mutex
	tables  map[string]*Table
	changed chan struct{}
}

// NewTables has none yet.
func NewTables(board *notice.Board) *Tables {
	return &Tables{board: board, tables: map[string]*Table{}, changed: make(chan struct{})}
}

// Apply takes route configurations of a response.
func (t *Tables) Apply(change discovery.Change) error {
	var errs []error
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, resource := range change.Set {
		var m routev3.RouteConfiguration
		err := resource.UnmarshalTo(&m)
		if err == nil {
			var table *Table
			if table, err = New(&m, t.board); err == nil {
				t.tables[name] = table
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("routes %s: %w", name, err))
		}
	}
	for _, name := range change.Removed {
		delete(t.tables, name)
	}
	close(t.changed)
	t.changed = make(chan struct{})
	return errors.Join(errs...)
}

// Missing lists names that have not come.
func (t *Tables) Missing(wanted []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return t.tables[name] != nil })
}

// Get waits for a route configuration.
func (t *Tables) Get(ctx context.Context, name string) (*Table, error) {
	for {
		t.mu.Lock()
		table, changed := t.tables[name], t.changed
		t.mu.Unlock()
		if table != nil {
			return table, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for routes %s: %w", name, ctx.Err())
		}
	}
}

// Table is one route configuration.
type Table struct {
	Name       string
	exact      map[string]*host
	suffixes   []*pattern // longest first
	prefixes   []*pattern
	fallback   *host
	ignorePort bool
	edits      edits
}

type pattern struct {
	text string
	host *host
}

// host is a virtual host.
type host struct {
	routes []*Route
	edits  edits
}

// New reads a route configuration.
func New(m *routev3.RouteConfiguration, board *notice.Board) (*Table, error) {
	board.Fields(m.GetName(), m, "name", "virtual_hosts", "validate_clusters", "ignore_port_in_host_matching", "max_direct_response_body_size_bytes", "metadata",
		"request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove")
	t := &Table{Name: m.GetName(), exact: map[string]*host{}, ignorePort: m.GetIgnorePortInHostMatching(), edits: newEdits(m)}
	for _, v := range m.GetVirtualHosts() {
		h, err := newHost(v, board)
		if err != nil {
			return nil, fmt.Errorf("virtual host %s: %w", v.GetName(), err)
		}
		for _, domain := range v.GetDomains() {
			t.add(strings.ToLower(domain), h)
		}
	}
	byLength := func(a, b *pattern) int { return len(b.text) - len(a.text) }
	slices.SortStableFunc(t.suffixes, byLength)
	slices.SortStableFunc(t.prefixes, byLength)
	return t, nil
}

func (t *Table) add(domain string, h *host) {
	switch {
	case domain == "*":
		t.fallback = h
	case strings.HasPrefix(domain, "*"):
		t.suffixes = append(t.suffixes, &pattern{domain[1:], h})
	case strings.HasSuffix(domain, "*"):
		t.prefixes = append(t.prefixes, &pattern{domain[:len(domain)-1], h})
	default:
		t.exact[domain] = h
	}
}

func newHost(v *routev3.VirtualHost, board *notice.Board) (*host, error) {
	board.Fields(v.GetName(), v, "name", "domains", "routes", "include_request_attempt_count", "metadata",
		"request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove")
	h := &host{edits: newEdits(v)}
	for _, r := range v.GetRoutes() {
		parsed, err := newRoute(r, board)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r.GetName(), err)
		}
		h.routes = append(h.routes, parsed)
	}
	return h, nil
}

// Find returns the first route that matches, with all that is to be changed on the way, or nil.
func (t *Table) Find(r *http.Request) *Match {
	h := t.hostOf(strings.ToLower(r.Host))
	if h == nil {
		return nil
	}
	for _, route := range h.routes {
		if route.matches(r) {
			return route.choose(h.edits, t.edits)
		}
	}
	return nil
}

func (t *Table) hostOf(name string) *host {
	if without, _, err := net.SplitHostPort(name); err == nil && t.ignorePort {
		name = without
	}
	if h := t.exact[name]; h != nil {
		return h
	}
	for _, p := range t.suffixes {
		if strings.HasSuffix(name, p.text) && len(name) > len(p.text) {
			return p.host
		}
	}
	for _, p := range t.prefixes {
		if strings.HasPrefix(name, p.text) && len(name) > len(p.text) {
			return p.host
		}
	}
	return t.fallback
}
