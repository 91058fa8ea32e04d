// Package match makes predicates of Envoy's matchers. What it does not know is an error, so that nothing matches by mistake.
package match

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// String matches a string.
type String func(s string) bool

// Request matches a request.
type Request func(r *http.Request) bool

// NewString reads a matcher of strings.
func NewString(m *matcherv3.StringMatcher) (String, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return func(s string) bool { return fold(s) == fold(p.Exact) }, nil
	case *matcherv3.StringMatcher_Prefix:
		return func(s string) bool { return strings.HasPrefix(fold(s), fold(p.Prefix)) }, nil
	case *matcherv3.StringMatcher_Suffix:
		return func(s string) bool { return strings.HasSuffix(fold(s), fold(p.Suffix)) }, nil
	case *matcherv3.StringMatcher_Contains:
		return func(s string) bool { return strings.Contains(fold(s), fold(p.Contains)) }, nil
	case *matcherv3.StringMatcher_SafeRegex:
		return NewRegex(p.SafeRegex)
	}
	return nil, fmt.Errorf("string matcher %T is not understood", m.GetMatchPattern())
}

// NewRegex reads an expression that the whole string has to match.
func NewRegex(m *matcherv3.RegexMatcher) (String, error) {
	r, err := regexp.Compile("^(?:" + m.GetRegex() + ")$")
	if err != nil {
		return nil, err
	}
	return r.MatchString, nil
}

// Value is a header of a request, or a pseudo-header.
func Value(r *http.Request, name string) (string, bool) {
	switch strings.ToLower(name) {
	case ":path":
		return r.URL.RequestURI(), true
	case ":method":
		return r.Method, true
	case ":authority", "host":
		return r.Host, true
	case ":scheme":
		return "http", true
	}
	values := r.Header.Values(name)
	return strings.Join(values, ","), len(values) > 0
}

// NewHeader reads a matcher of headers. A missing header matches only an inverted matcher, or one for missing headers.
func NewHeader(m *routev3.HeaderMatcher) (Request, error) {
	var is String
	var err error
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case nil:
		is = func(string) bool { return true }
	case *routev3.HeaderMatcher_PresentMatch:
		return func(r *http.Request) bool {
			_, ok := Value(r, m.GetName())
			return ok == p.PresentMatch != m.GetInvertMatch()
		}, nil
	case *routev3.HeaderMatcher_StringMatch:
		is, err = NewString(p.StringMatch)
	default:
		err = fmt.Errorf("matcher %T of header %s is not understood", p, m.GetName())
	}
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) bool {
		value, ok := Value(r, m.GetName())
		if !ok && !m.GetTreatMissingHeaderAsEmpty() {
			return m.GetInvertMatch() && m.GetHeaderMatchSpecifier() != nil
		}
		return is(value) != m.GetInvertMatch()
	}, nil
}

// NewQuery reads a matcher of query parameters.
func NewQuery(m *routev3.QueryParameterMatcher) (Request, error) {
	is := String(func(string) bool { return true })
	if s := m.GetStringMatch(); s != nil {
		var err error
		if is, err = NewString(s); err != nil {
			return nil, err
		}
	}
	return func(r *http.Request) bool {
		query, _ := url.ParseQuery(r.URL.RawQuery) // what can be read of it
		values, ok := query[m.GetName()]
		return ok && is(values[0])
	}, nil
}

// NewPrefix reads a range of addresses.
func NewPrefix(c *corev3.CidrRange) (netip.Prefix, error) {
	address, err := netip.ParseAddr(c.GetAddressPrefix())
	if err != nil {
		return netip.Prefix{}, err
	}
	return address.Prefix(int(c.GetPrefixLen().GetValue()))
}

// Path is a request's path without its query, as routes and policies see it.
func Path(r *http.Request) string { return r.URL.EscapedPath() }
