package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// agentAnswering serves an answer, and returns a client without a certificate, the certificate's fingerprint, and the tokens that were shown.
func agentAnswering(t *testing.T, answer string) (c Client, fingerprint string, tokens func() []string) {
	t.Helper()
	var shown []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	return Client{Token: "secret", Dial: dial}, hex.EncodeToString(sum[:]), func() []string { server.Close(); return shown }
}

// An agent whose annotation names no certificate could be anybody.
func TestWithoutACertificateNoTokenIsSent(t *testing.T) {
	for name, certificate := range map[string]string{"none": "", "another": strings.Repeat("0", 64)} {
		c, _, tokens := agentAnswering(t, "{}")
		c.Certificate = certificate
		if doc, err := c.Get(t.Context(), "shop", "cart"); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %+v, %v", name, doc, err)
		}
		if shown := tokens(); len(shown) > 0 {
			t.Errorf("%s: it was shown %q", name, shown)
		}
	}
}

func TestARefusalHasItsMessage(t *testing.T) {
	for name, tc := range map[string]struct {
		status     int
		body, want string
	}{
		"a refusal":                {http.StatusForbidden, `{"code":403,"message":"not allowed"}`, "not allowed"},
		"one of an earlier agent":  {http.StatusForbidden, `{"code":"Forbidden","message":"not allowed"}`, "not allowed"},
		"no such path":             {http.StatusNotFound, "404 page not found", "does not serve logs"},
		"no answer of the agent's": {http.StatusBadGateway, "<html>", "status 502"},
	} {
		err := refused(&http.Response{StatusCode: tc.status, Body: io.NopCloser(strings.NewReader(tc.body))})
		refusal, is := errors.AsType[*Refusal](err)
		if !strings.Contains(err.Error(), tc.want) || is && refusal.Code != tc.status {
			t.Errorf("%s: %v (%+v), want %q", name, err, refusal, tc.want)
		}
	}
}

func TestAnAnswerIsBounded(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"a document":     {`{"pod":"shop/cart"}`, ""},
		"a long one":     {`{"pod":"` + strings.Repeat("x", MaxAnswer) + `"}`, "larger than"},
		"something else": {"<html>", "read the agent's answer"},
		"no document":    {"{}", "no document about a pod"},
	} {
		c, fingerprint, tokens := agentAnswering(t, tc.answer)
		c.Certificate = fingerprint
		doc, err := c.Get(t.Context(), "shop", "cart")
		if tc.want == "" && (err != nil || doc.Pod != "shop/cart") || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %q, %v", name, doc.Pod, err)
		}
		if shown := tokens(); len(shown) != 1 || shown[0] != "Bearer secret" {
			t.Errorf("%s: it was shown %q", name, shown)
		}
	}
}
