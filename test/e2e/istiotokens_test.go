package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// istioAudience is the audience of the tokens that istiod takes.
const istioAudience = "istio-ca"

// renewsOften has proxies ask for new certificates every few seconds, long before the old ones expire.
func renewsOften(spec map[string]any) {
	spec["env"] = []any{
		map[string]any{"name": "SECRET_TTL", "value": "300s"}, map[string]any{"name": "SECRET_GRACE_PERIOD_RATIO", "value": "0.97"},
	}
}

// A proxy's token has expired, as if the agent had been away for half a day: istiod refuses it, the proxy says so, and serves on with the
// certificate that it has. The agent renews the token, and the proxy goes on getting certificates.
func (o outside) tokens(t *testing.T) {
	m := o.mesh(t, renewsOften)
	pods := []*corev1.Pod{m.create(t, m.member(t, "store", "v1"))}
	m.wantIdentities(t, pods)
	pod, shown := pods[0], m.lookAtIdentities(t, pods)
	secrets := m.secretsOf(t, pod, 0)
	file := filepath.Join(secrets, "tokens/..data/istio-token")
	text, err := os.ReadFile(file)
	must(t, err)
	if status := m.review(t.Context(), t, string(text), istioAudience); !status.Authenticated {
		t.Fatalf("the proxy's token is no good: %s", status.Error)
	}
	expired := expire(t, string(text))
	if status := m.review(t.Context(), t, expired, istioAudience); status.Authenticated || !strings.Contains(status.Error, "expired") {
		t.Fatalf("the API server says of the expired token: %+v", status)
	}

	must(t, os.WriteFile(file, []byte(expired), 0o400))
	const refused = "code = Unauthenticated"
	eventually(t, "istiod's refusal in the proxy's log", func(context.Context) error {
		if log := m.proxyLog(t, pod); !strings.Contains(log, refused) {
			return fmt.Errorf("it has no %q", refused)
		}
		return nil
	})
	m.awaitSidecar(t, pod.Name, isServing(0))

	dueNow(t, secrets+".json")
	eventually(t, "a new token", func(ctx context.Context) error {
		text, err := os.ReadFile(file)
		if err == nil && !m.review(ctx, t, string(text), istioAudience).Authenticated {
			err = errors.New("it is no good")
		}
		return err
	})
	m.awaitRenewal(t, pod)
	m.awaitSidecar(t, pod.Name, isServing(0))
	shown.end(t)
}

// expire returns a token that has expired, otherwise the same: the cluster's own key signs it.
func expire(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	must(t, err)
	claims := decode[map[string]any](t, string(raw))
	now := time.Now()
	claims["iat"], claims["nbf"], claims["exp"] = now.Add(-2*time.Hour).Unix(), now.Add(-2*time.Hour).Unix(), now.Add(-time.Hour).Unix()
	raw, err = json.Marshal(claims)
	must(t, err)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "../pki/service-account.key"))
	must(t, err)
	block, _ := pem.Decode(text)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	must(t, err)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	must(t, err)
	const half = 32 // of a signature by ES256
	signature := append(r.FillBytes(make([]byte, half)), s.FillBytes(make([]byte, half))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// dueNow has the agent renew an epoch's secrets at its next check, as when most of their time is over.
func dueNow(t *testing.T, grant string) {
	t.Helper()
	text, err := os.ReadFile(grant)
	must(t, err)
	g := decode[map[string]any](t, string(text))
	for _, source := range g["Sources"].([]any) {
		source.(map[string]any)["RenewAt"] = time.Time{}
	}
	text, err = json.Marshal(g)
	must(t, err)
	must(t, os.WriteFile(grant+".new", text, 0o600))
	must(t, os.Rename(grant+".new", grant))
}

// awaitRenewal waits until a pod's proxy shows another certificate than now.
func (s *space) awaitRenewal(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	serial := func(ctx context.Context, pod *corev1.Pod) (string, error) {
		roots, err := s.meshRoots(ctx)
		if err != nil {
			return "", err
		}
		shown, err := certificateOf(ctx, pod, roots)
		if err != nil {
			return "", err
		}
		return shown.SerialNumber.String(), nil
	}
	var before []string
	for _, pod := range pods {
		now, err := serial(t.Context(), pod)
		must(t, err)
		before = append(before, now)
	}
	for i, pod := range pods {
		eventually(t, "a new certificate of "+pod.Name, func(ctx context.Context) error {
			now, err := serial(ctx, pod)
			if err == nil && now == before[i] {
				err = errors.New("it is the one before")
			}
			return err
		})
	}
}
