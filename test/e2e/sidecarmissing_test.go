package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// lateSecret is in the chart's value proxies.secrets; missingSecret is not.
	lateSecret    = "e2e-late"
	missingSecret = "e2e-missing"
	// agentSecrets is where the agent sees the Secrets that profiles may use.
	agentSecrets = "etc/istio-pod-network-controller/secrets" //nolint:gosec // a path
)

// putSecret makes or replaces a Secret of the agent's namespace, and waits until the agent sees it. The Secret goes with the test.
func (m managed) putSecret(t *testing.T, name string, data map[string][]byte) {
	t.Helper()
	secrets := m.api.CoreV1().Secrets(agentName)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	case err == nil:
		t.Cleanup(func() { must(t, secrets.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})) })
	}
	must(t, err)
	agent := m.agent(t)
	volume := filepath.Join(fmt.Sprintf("/proc/%d/root", m.containerPID(t, agent, "agent")), agentSecrets, name)
	hurried := time.Time{}
	eventually(t, "the agent's volume of "+name, func(ctx context.Context) error {
		for key, value := range data {
			if text, err := os.ReadFile(filepath.Join(volume, key)); err != nil || string(text) != string(value) {
				return m.hurry(ctx, t, agent, &hurried, fmt.Errorf("key %s: the value of before, error %w", key, err))
			}
		}
		return nil
	})
}

// hurry changes the agent's pod, at most once a second: the kubelet looks at a pod's volumes then, and otherwise every minute or two.
func (m managed) hurry(ctx context.Context, t *testing.T, agent *corev1.Pod, last *time.Time, why error) error {
	t.Helper()
	if time.Since(*last) < time.Second {
		return why
	}
	*last = time.Now()
	patch := annotationPatch(t, map[string]any{"hurried": last.String()})
	if _, err := m.api.CoreV1().Pods(agentName).Patch(ctx, agent.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return why
}

// another makes one more profile of the namespace, for pods that choose it by their annotation.
func (m managed) another(t *testing.T, name string, change func(spec map[string]any)) managed {
	t.Helper()
	m.profile += "-" + name
	m.createProfile(t, change)
	t.Cleanup(func() {
		must(t, m.objects.Resource(sidecarKind("proxyprofiles")).Delete(context.WithoutCancel(t.Context()), m.profile, metav1.DeleteOptions{}))
	})
	return m
}

// awaitProxyFailed waits for the warning that a pod's proxy has failed, with some words in it.
func (s *space) awaitProxyFailed(t *testing.T, pod *corev1.Pod, words ...string) {
	t.Helper()
	eventually(t, "the event "+proxyFailed, func(ctx context.Context) error {
		list, err := s.api.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID) + ",reason=" + proxyFailed})
		if err != nil {
			return err
		}
		said := make([]string, 0, len(list.Items))
	events:
		for i := range list.Items {
			said = append(said, list.Items[i].Message)
			for _, word := range words {
				if !strings.Contains(list.Items[i].Message, word) {
					continue events
				}
			}
			return nil
		}
		return fmt.Errorf("none of %d says %q: %q", len(said), words, said)
	})
}

// agentLog is what the agent has logged since it started.
func (c *cluster) agentLog(t *testing.T) string {
	t.Helper()
	text, err := c.api.CoreV1().Pods(agentName).GetLogs(c.agent(t).Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	must(t, err)
	return string(text)
}

// withSecrets gives a profile's proxies secrets.
func withSecrets(sources ...map[string]any) func(spec map[string]any) {
	return func(spec map[string]any) {
		list := make([]any, 0, len(sources))
		for _, s := range sources {
			list = append(list, s)
		}
		spec["secrets"] = list
	}
}

func secretSource(name, secret string, keys ...any) map[string]any {
	return map[string]any{"name": name, "secret": map[string]any{"name": secret, "keys": keys}}
}

func tokenSource(audience string) map[string]any {
	return map[string]any{"name": "istio", "serviceAccountToken": map[string]any{"audience": audience, "expirationSeconds": int64(3600)}}
}

// What a proxy needs and does not get is told in words. The pod runs, and is not ready until the need is met.
//
//e2e:rounds nri
func TestSidecarSaysWhatItsProxyLacks(t *testing.T) {
	t.Parallel()
	m := newManaged(t, withSecrets(secretSource("late", lateSecret, "key")))
	late := m.create(t, plainPod("late"))
	lacking := map[string]struct {
		change func(spec map[string]any)
		words  []string
	}{
		"unknown":  {withSecrets(secretSource("s", missingSecret, "key")), []string{missingSecret, "proxies.secrets"}},
		"audience": {withSecrets(tokenSource("vault")), []string{"vault", "proxies.tokenAudiences", tokenAudience}},
		"image":    {func(spec map[string]any) { spec["image"] = missingImage }, []string{missingImage, "cannot be pulled"}},
	}
	for name, c := range lacking {
		pod := plainPod(name)
		pod.Annotations = map[string]string{keySidecar: m.another(t, name, c.change).profile}
		m.create(t, pod)
	}
	for name, c := range lacking {
		m.wantLacking(t, m.await(t, name, isRunning), c.words...)
	}
	m.wantLacking(t, late, lateSecret, "not there", "create it")
	m.putSecret(t, lateSecret, map[string][]byte{"other": []byte("1")})
	m.awaitSidecar(t, "late", says(false, lateSecret, `no key "key"`))
	m.awaitProxyFailed(t, late, lateSecret, `no key "key"`)
	m.putSecret(t, lateSecret, map[string][]byte{"key": []byte("1")})
	pod := m.await(t, "late", isReadyNow)
	m.wantProxied(t, pod)
}

// wantLacking wants a pod that runs and is not ready, and to be told why by its ManagedProxy, an event and its condition.
func (m managed) wantLacking(t *testing.T, pod *corev1.Pod, words ...string) {
	t.Helper()
	m.awaitSidecar(t, pod.Name, says(false, words...))
	m.awaitProxyFailed(t, pod, words...)
	now := m.await(t, pod.Name, func(pod *corev1.Pod) error {
		if c := conditionOf(pod); c.Reason != proxyNotReady {
			return fmt.Errorf("its condition is %+v", c)
		}
		return isRunning(pod)
	})
	if isReady(now) {
		t.Errorf("%s is ready", pod.Name)
	}
}
