// Package rbac decides who may do what. A policy with a part that is not understood lets nobody through.
package rbac

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/match"
)

// Subject is what is asked about.
type Subject struct {
	Request    *http.Request // nil for bytes
	Names      []string      // of the peer's certificate
	Source     netip.Addr
	Target     netip.AddrPort
	ServerName string // that the client asked for by TLS
}

// Rules are those of one filter.
type Rules struct {
	deny     bool
	closed   bool // not understood
	policies map[string]func(s Subject) bool
}

// New reads rules. Rules of nil, of a filter with shadow rules alone, let all through.
func New(m *rbacv3.RBAC, log *slog.Logger) *Rules {
	r := &Rules{policies: map[string]func(Subject) bool{}}
	if m == nil {
		r.deny = true // by no policy
		return r
	}
	r.deny = m.GetAction() == rbacv3.RBAC_DENY
	if m.GetAction() == rbacv3.RBAC_LOG {
		r.deny = true
		return r
	}
	for name, policy := range m.GetPolicies() {
		is, err := newPolicy(policy)
		if err != nil {
			log.Error("policy not understood, nobody gets through", "policy", name, "error", err)
			r.closed = true
		}
		r.policies[name] = is
	}
	return r
}

// Allowed says whether the subject gets through, and by which policy, if one decided.
func (r *Rules) Allowed(s Subject) (allowed bool, policy string) {
	if r.closed {
		return false, "not understood"
	}
	for name, is := range r.policies {
		if is(s) {
			return !r.deny, name
		}
	}
	return r.deny, "none matched"
}

type test = func(s Subject) bool

func newPolicy(p *rbacv3.Policy) (test, error) {
	if p.GetCondition() != nil || p.GetCheckedCondition() != nil {
		return nil, fmt.Errorf("a condition is not understood")
	}
	permission, err := anyOf(p.GetPermissions(), newPermission)
	if err != nil {
		return nil, err
	}
	principal, err := anyOf(p.GetPrincipals(), newPrincipal)
	if err != nil {
		return nil, err
	}
	return func(s Subject) bool { return permission(s) && principal(s) }, nil
}

func anyOf[T any](list []T, read func(T) (test, error)) (test, error) {
	tests, err := readAll(list, read)
	return func(s Subject) bool { return slices.ContainsFunc(tests, func(is test) bool { return is(s) }) }, err
}

func allOf[T any](list []T, read func(T) (test, error)) (test, error) {
	tests, err := readAll(list, read)
	return func(s Subject) bool { return !slices.ContainsFunc(tests, func(is test) bool { return !is(s) }) }, err
}

func not(is test, err error) (test, error) {
	return func(s Subject) bool { return !is(s) }, err
}

func readAll[T any](list []T, read func(T) (test, error)) ([]test, error) {
	var tests []test
	for _, m := range list {
		is, err := read(m)
		if err != nil {
			return nil, err
		}
		tests = append(tests, is)
	}
	return tests, nil
}

// ofRequest is a test that bytes do not pass.
func ofRequest(is match.Request, err error) (test, error) {
	return func(s Subject) bool { return s.Request != nil && is(s.Request) }, err
}

func newPermission(p *rbacv3.Permission) (test, error) {
	switch rule := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return func(Subject) bool { return rule.Any }, nil
	case *rbacv3.Permission_AndRules:
		return allOf(rule.AndRules.GetRules(), newPermission)
	case *rbacv3.Permission_OrRules:
		return anyOf(rule.OrRules.GetRules(), newPermission)
	case *rbacv3.Permission_NotRule:
		return not(newPermission(rule.NotRule))
	case *rbacv3.Permission_Header:
		return ofRequest(match.NewHeader(rule.Header))
	case *rbacv3.Permission_UrlPath:
		is, err := match.NewString(rule.UrlPath.GetPath())
		return ofRequest(func(r *http.Request) bool { return is(match.Path(r)) }, err)
	case *rbacv3.Permission_DestinationPort:
		return func(s Subject) bool { return uint32(s.Target.Port()) == rule.DestinationPort }, nil
	case *rbacv3.Permission_DestinationPortRange:
		return func(s Subject) bool {
			port := int32(s.Target.Port())
			return port >= rule.DestinationPortRange.GetStart() && port < rule.DestinationPortRange.GetEnd()
		}, nil
	case *rbacv3.Permission_DestinationIp:
		prefix, err := match.NewPrefix(rule.DestinationIp)
		return func(s Subject) bool { return prefix.Contains(s.Target.Addr()) }, err
	case *rbacv3.Permission_RequestedServerName:
		is, err := match.NewString(rule.RequestedServerName)
		return func(s Subject) bool { return is(s.ServerName) }, err
	}
	return nil, fmt.Errorf("permission %T is not understood", p.GetRule())
}

func newPrincipal(p *rbacv3.Principal) (test, error) {
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return func(Subject) bool { return id.Any }, nil
	case *rbacv3.Principal_AndIds:
		return allOf(id.AndIds.GetIds(), newPrincipal)
	case *rbacv3.Principal_OrIds:
		return anyOf(id.OrIds.GetIds(), newPrincipal)
	case *rbacv3.Principal_NotId:
		return not(newPrincipal(id.NotId))
	case *rbacv3.Principal_Authenticated_:
		if id.Authenticated.GetPrincipalName() == nil {
			return func(s Subject) bool { return len(s.Names) > 0 }, nil
		}
		is, err := match.NewString(id.Authenticated.GetPrincipalName())
		return func(s Subject) bool { return slices.ContainsFunc(s.Names, is) }, err
	case *rbacv3.Principal_DirectRemoteIp:
		return source(match.NewPrefix(id.DirectRemoteIp))
	case *rbacv3.Principal_SourceIp:
		return source(match.NewPrefix(id.SourceIp)) //nolint:staticcheck // Istio's older versions
	case *rbacv3.Principal_RemoteIp:
		return source(match.NewPrefix(id.RemoteIp)) // no proxy before this one is trusted
	case *rbacv3.Principal_Header:
		return ofRequest(match.NewHeader(id.Header))
	case *rbacv3.Principal_UrlPath:
		is, err := match.NewString(id.UrlPath.GetPath())
		return ofRequest(func(r *http.Request) bool { return is(match.Path(r)) }, err)
	}
	return nil, fmt.Errorf("principal %T is not understood", p.GetIdentifier())
}

func source(prefix netip.Prefix, err error) (test, error) {
	return func(s Subject) bool { return prefix.Contains(s.Source) }, err
}
