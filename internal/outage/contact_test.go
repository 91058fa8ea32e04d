package outage

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// refused is an attempt of an informer to list or watch.
func refused(what string) error {
	return &url.Error{Op: "Get", URL: "https://10.0.0.1/api/v1/" + what, Err: fmt.Errorf("dial tcp 10.0.0.1:443: %w", syscall.ECONNREFUSED)}
}

// logged returns a context whose log is written to the buffer.
func logged(t *testing.T) (context.Context, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	return logr.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(out, nil))), out
}

func TestContact_dayWithoutTheServer_isLoggedTwiceAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Contact
		ctx, out := logged(t)
		c.Note(ctx, "pods", nil)
		if c.Err() != nil || c.Away() != 0 || out.Len() > 0 {
			t.Errorf("before: %v, %s, %s", c.Err(), c.Away(), out)
		}
		start := time.Now()
		for time.Since(start) < 24*time.Hour {
			c.Note(ctx, "pods", refused("pods"))
			c.Note(ctx, "namespaces", refused("namespaces"))
			<-time.After(15 * time.Second)
		}
		words := "the API server does not answer, since " + start.UTC().Format(time.RFC3339) + ": dial tcp 10.0.0.1:443: connection refused"
		if err := c.Err(); err == nil || err.Error() != words || c.Away() != 24*time.Hour {
			t.Errorf("after a day: %v, %s", err, c.Away())
		}
		c.Note(ctx, "pods", nil)
		if c.Err() == nil || strings.Contains(out.String(), "again") {
			t.Error("it is back while the namespaces are not there")
		}
		c.Note(ctx, "namespaces", nil)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "no contact with the API server") || !strings.Contains(lines[0], "connection refused") ||
			!strings.Contains(lines[1], "API server reached again") || !strings.Contains(lines[1], "duration=24h0m0s") {
			t.Errorf("log:\n%s", out)
		}
		if c.Err() != nil || c.Away() != 0 {
			t.Errorf("afterwards: %v, %s", c.Err(), c.Away())
		}
	})
}

// expired is an attempt at a server whose certificate has expired.
func expired() error {
	return &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired, Detail: "in 2025"}}}
}

// Who waits for the end of an outage must not wait for one that ends by an administrator's hand only.
func TestContact_expiredCertificate_isNamed(t *testing.T) {
	var c Contact
	ctx, out := logged(t)
	for range 3 {
		c.Note(ctx, "pods", refused("pods"))
		c.Note(ctx, "pods", expired())
		c.Note(ctx, "pods", expired())
	}
	if err := c.Err(); err == nil || !strings.HasPrefix(err.Error(), "the API server's certificate is not accepted, since") || !strings.Contains(err.Error(), "expired") {
		t.Errorf("words: %v", err)
	}
	if n := strings.Count(out.String(), "certificate has expired"); n != 1 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("log:\n%s", out)
	}
}

// Words that alternate would be logged and written again and again.
func TestContact_askersFailDifferently_keepsTheReasonOfTheFirst(t *testing.T) {
	var c Contact
	ctx, out := logged(t)
	for range 100 {
		c.Note(ctx, "pods", refused("pods"))
		c.Note(ctx, "namespaces", expired())
		c.Note(ctx, "nodes", errors.New("i/o timeout"))
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("words: %v", err)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 { // the outage, and the certificate
		t.Errorf("log:\n%s", out)
	}
	for range 100 { // which other one is named must not be left to chance
		c.Note(ctx, "nodes", errors.New("i/o timeout"))
		c.Note(ctx, "nodes", nil)
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("once another has succeeded: %v", err)
		}
	}
	c.Note(ctx, "pods", nil)
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("once the first has succeeded: %v", err)
	}
}

// An API server that answers must not be told to be away: who looks for it there looks in vain.
func TestContact_refusal_isToldApart(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, err := range map[string]error{
		"a right is missing":    apierrors.NewForbidden(pods, "", errors.New("no")),
		"the token has expired": apierrors.NewUnauthorized("no"),
		"an unknown kind":       fmt.Errorf("make manager: %w", apierrors.NewNotFound(pods, "")),
	} {
		var c Contact
		ctx, out := logged(t)
		c.Note(ctx, "pods", err)
		if got := c.Err(); got == nil || !strings.HasPrefix(got.Error(), "the API server refuses the agent, since") {
			t.Errorf("%s: %v", name, got)
		}
		if !strings.Contains(out.String(), "the API server refuses the agent: ") {
			t.Errorf("%s: logged %s", name, out)
		}
	}
}
