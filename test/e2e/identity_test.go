package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asUser gives a container a user and no group.
func asUser(c corev1.Container, uid int64) corev1.Container {
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: &uid}
	return c
}

// A proxy that no id tells from its application would be redirected into itself: its pod says so.
//
//e2e:rounds nftables
func TestProxyWithoutAnIDOfItsOwnIsToldOf(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"one-user":     {newPod("one-user", nil, asUser(appContainer(), 2000), asUser(proxyContainer("istio-proxy"), 2000)), "the group of user 2000"},
		"root-no-more": {newPod("root-no-more", nil, appContainer(), asUser(proxyContainer("istio-proxy"), 0)), "its runAsUser is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.create(t, c.pod)
			pod := s.await(t, name, hasStatus(statusFailed))
			if got := conditionOf(pod); got.Reason != "ProxyUnknown" || !strings.Contains(got.Message, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
			s.awaitEvent(t, name, "ProxyUnknown", c.want)
		})
	}
}

// Nobody can take a debug container out of a pod again: whatever it runs as, the pod stays in its Services.
//
//e2e:rounds nftables
func TestDebugContainerAsTheProxyTakesNoPodOut(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("debugged", nil))
	debug := proxyContainer("debug")
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: appContainer().Image, Args: []string{"serve", "-http=8099"}, SecurityContext: debug.SecurityContext,
	}}}
	_, err := s.pods().UpdateEphemeralContainers(t.Context(), pod.Name, pod, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "the debug container runs", func(ctx context.Context) error {
		pod, err := s.pods().Get(ctx, "debugged", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if all := pod.Status.EphemeralContainerStatuses; len(all) == 0 || all[0].State.Running == nil {
			return errors.New("not yet")
		}
		return nil
	})
	s.awaitEvent(t, "debugged", "SettingWithoutEffect", `ephemeral container "debug" runs as the proxy`)
	pod = s.await(t, "debugged", hasStatus(statusInitialized))
	wantInbound(t, pod, families()[0], appPort, true)
}

// What an image makes of a proxy only the runtime knows, and it says so once the proxy runs.
//
//e2e:rounds nftables
func TestProxyThatStartsAsRootIsNoted(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	silent := proxyContainer("istio-proxy")
	silent.Image, silent.Args, silent.SecurityContext = appContainer().Image, []string{"serve", "-http=15006"}, nil
	s.create(t, newPod("images-root", nil, appContainer(), silent))
	s.awaitEvent(t, "images-root", "SettingWithoutEffect", "container istio-proxy starts as root")
	s.await(t, "images-root", hasStatus(statusInitialized))
}
