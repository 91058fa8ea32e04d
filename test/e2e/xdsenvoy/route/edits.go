package route

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"istio-pod-network-controller/test/e2e/xdsenvoy/match"
)

// edits are headers to add and to remove.
type edits struct {
	add, addToResponse       []*corev3.HeaderValueOption
	remove, removeOfResponse []string
}

func newEdits(m interface {
	GetRequestHeadersToAdd() []*corev3.HeaderValueOption
	GetRequestHeadersToRemove() []string
	GetResponseHeadersToAdd() []*corev3.HeaderValueOption
	GetResponseHeadersToRemove() []string
},
) edits {
	return edits{m.GetRequestHeadersToAdd(), m.GetResponseHeadersToAdd(), m.GetRequestHeadersToRemove(), m.GetResponseHeadersToRemove()}
}

// EditRequest changes a request on its way to the upstream.
func (m *Match) EditRequest(r *http.Request) {
	if m.rewrite != nil {
		m.rewrite(r)
	}
	for _, e := range m.edits {
		edit(r.Header, e.add, e.remove)
	}
	if host := r.Header.Get(":authority"); host != "" {
		r.Host = host
		r.Header.Del(":authority")
	}
}

// EditResponse changes a response on its way back.
func (m *Match) EditResponse(header http.Header) {
	for _, e := range m.edits {
		edit(header, e.addToResponse, e.removeOfResponse)
	}
}

func edit(header http.Header, add []*corev3.HeaderValueOption, remove []string) {
	for _, name := range remove {
		header.Del(name)
	}
	for _, h := range add {
		name, value := h.GetHeader().GetKey(), strings.ReplaceAll(h.GetHeader().GetValue(), "%%", "%")
		if strings.HasPrefix(name, ":") {
			header[name] = []string{value}
			continue
		}
		switch h.GetAppendAction() {
		case corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
			header.Add(name, value)
		case corev3.HeaderValueOption_ADD_IF_ABSENT:
			if header.Get(name) == "" {
				header.Set(name, value)
			}
		default:
			header.Set(name, value)
		}
	}
}

// readRewrite makes the change of path and host.
func (r *Route) readRewrite(m *routev3.RouteAction) error {
	var path func(string) string
	if to := m.GetPrefixRewrite(); to != "" {
		from := r.prefix
		path = func(s string) string { return to + strings.TrimPrefix(s, from) }
	}
	if rx := m.GetRegexRewrite(); rx != nil {
		from, err := regexp.Compile(rx.GetPattern().GetRegex())
		if err != nil {
			return err
		}
		to := regexp.MustCompile(`\\(\d)`).ReplaceAllString(strings.ReplaceAll(rx.GetSubstitution(), "$", "$$"), "$${$1}")
		path = func(s string) string { return from.ReplaceAllString(s, to) }
	}
	r.rewrite = func(request *http.Request) {
		if host := m.GetHostRewriteLiteral(); host != "" {
			request.Host = host
		}
		if path == nil {
			return
		}
		if u, err := url.ParseRequestURI(path(match.Path(request))); err == nil {
			request.URL.Path, request.URL.RawPath = u.Path, u.RawPath
		}
	}
	return nil
}

// faultFilter is the filter whose configuration a route may have.
const faultFilter = "envoy.filters.http.fault"

// Fault is an injected fault.
type Fault struct {
	delay                  time.Duration
	status                 int
	delayShare, abortShare float64
}

func newFault(config *anypb.Any) (*Fault, error) {
	var m faultv3.HTTPFault
	if err := config.UnmarshalTo(&m); err != nil {
		return nil, err
	}
	f := &Fault{
		delay: m.GetDelay().GetFixedDelay().AsDuration(), status: int(m.GetAbort().GetHttpStatus()),
		delayShare: share(m.GetDelay().GetPercentage()), abortShare: share(m.GetAbort().GetPercentage()),
	}
	if f.delayShare > 0 && f.delay == 0 || f.abortShare > 0 && f.status == 0 {
		return nil, fmt.Errorf("fault %s is not understood", &m)
	}
	return f, nil
}

// share is the part of requests, from 0 to 1.
func share(p *typev3.FractionalPercent) float64 {
	of := map[typev3.FractionalPercent_DenominatorType]float64{
		typev3.FractionalPercent_HUNDRED: 100, typev3.FractionalPercent_TEN_THOUSAND: 10_000, typev3.FractionalPercent_MILLION: 1_000_000,
	}[p.GetDenominator()]
	return float64(p.GetNumerator()) / of
}

// Draw returns what this request suffers: a delay, and a status to answer with; each may be 0.
func (f *Fault) Draw() (delay time.Duration, status int) {
	if f == nil {
		return 0, 0
	}
	if rand.Float64() < f.delayShare { //nolint:gosec // no secret
		delay = f.delay
	}
	if rand.Float64() < f.abortShare { //nolint:gosec // no secret
		status = f.status
	}
	return delay, status
}
