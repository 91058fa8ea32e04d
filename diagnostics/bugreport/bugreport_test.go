package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// unpacked returns the files of an archive.
func unpacked(t *testing.T, r *Report) map[string]string {
	t.Helper()
	var packed bytes.Buffer
	n, err := r.Write(&packed, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "bugreport/")] = string(data)
	}
	if len(files) != n {
		t.Errorf("%d files, said %d", len(files), n)
	}
	return files
}

func agent() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "mesh", Name: "agent-1", Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"},
			Annotations:     map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "hidden-1"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}},
		},
		Spec: corev1.PodSpec{NodeName: "n1", HostNetwork: true, Containers: []corev1.Container{
			{Name: "agent", Args: []string{"run", "--api-key=hidden-2"}, Env: []corev1.EnvVar{{Name: "A", Value: "hidden-3"}}},
		}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", RestartCount: 1}}},
	}
}

func profiles(context.Context, string, metav1.ListOptions) ([]byte, error) {
	return []byte(`{"items":[{"spec":{"env":[{"name":"B","value":"hidden-4"}],"template":"key: |\n -----BEGIN RSA PRIVATE KEY-----\nhidden-5\n-----END RSA PRIVATE KEY-----\n"}}]}`), nil
}

func TestReport_cluster_isCollectedWithoutSecrets(t *testing.T) {
	labels := map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"}
	client := fake.NewClientset(agent(),
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "set", Labels: labels}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "dashboard", Labels: labels}, Data: map[string]string{"c": "password: hidden-6"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "of-somebody"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "s"}, Data: map[string][]byte{"a": []byte("hidden-7")}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}, Message: "Authorization: Bearer hidden-8hidden"},
	)
	r := &Report{Client: client, Objects: profiles}
	r.Add("status.json", func() (any, error) { return map[string]string{"pods": "2 programmed"}, nil })
	r.Collect(t.Context())
	files := unpacked(t, r)
	for name, want := range map[string]string{
		"README.txt": "Not read:\n  nothing\n", "status.json": "2 programmed", "agents.json": `"agent-1"`, "daemonsets-mesh.json": `"set"`,
		"configmaps-mesh.json": `"dashboard"`, "logs/mesh-agent-1.log": "fake logs", "logs/mesh-agent-1-previous.log": "fake logs",
		"events-mesh.json": "", "events-of-pods.json": `"shop"`, "proxyprofiles.json": `"B"`, "managedproxies.json": "items",
	} {
		if text, ok := files[name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
		delete(files, name)
	}
	for name := range files {
		t.Errorf("%s was not expected", name)
	}
	for name, text := range unpacked(t, r) {
		if strings.Contains(text, "hidden") || strings.Contains(text, "of-somebody") {
			t.Errorf("%s: %s", name, text)
		}
	}
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "secrets" || a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func TestReport_noRights_areListed(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: a.GetResource().Resource}, "", errors.New("no\nrights"))
	})
	r := &Report{Client: client, Objects: func(context.Context, string, metav1.ListOptions) ([]byte, error) {
		return nil, errors.New("token=hidden")
	}}
	r.Collect(t.Context())
	files := unpacked(t, r)
	if len(files) != 1 || len(r.NotRead) != 4 {
		t.Errorf("%d files, %q", len(files), r.NotRead)
	}
	for _, want := range []string{"  agents: pods is forbidden", "  events-of-pods.json: events is forbidden: no rights\n", "  proxyprofiles.json: token=REDACTED\n"} {
		if !strings.Contains(files["README.txt"], want) {
			t.Errorf("no %q in %s", want, files["README.txt"])
		}
	}
}

func TestReport_manyObjects_areSaidToBeMore(t *testing.T) {
	r := &Report{Client: fake.NewClientset(), Objects: func(context.Context, string, metav1.ListOptions) ([]byte, error) {
		return []byte(`{"items":[{"name":"object-0"}],"metadata":{"continue":"a"}}`), nil
	}}
	r.Collect(t.Context())
	files := unpacked(t, r)
	if want := "  managedproxies.json: the first 1 are here, and there are more\n"; !strings.Contains(files["README.txt"], want) || !strings.Contains(files["managedproxies.json"], "object-0") {
		t.Errorf("%q, %s", r.NotRead, files["managedproxies.json"])
	}
}

// Nodes that do not answer take the time of whatever is read after their logs.
func TestReport_agentsDoNotAnswer_restIsThere(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(agent(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "set"}})
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() == "log" {
			cancel()
		}
		return ctx.Err() != nil, nil, ctx.Err()
	})
	r := &Report{Client: client, Objects: func(ctx context.Context, _ string, _ metav1.ListOptions) ([]byte, error) {
		return []byte("{}"), ctx.Err()
	}}
	r.Collect(ctx)
	files := unpacked(t, r)
	for _, name := range []string{"agents.json", "daemonsets-mesh.json", "events-mesh.json", "events-of-pods.json", "managedproxies.json"} {
		if _, ok := files[name]; !ok {
			t.Errorf("no %s: %q", name, r.NotRead)
		}
	}
	if ctx.Err() == nil {
		t.Error("no log was read")
	}
}

func TestReport_manyAgents_hasTroubledOnes(t *testing.T) {
	client := fake.NewClientset()
	for i := range maxAgents + 2 {
		a := agent()
		a.Name, a.Spec.NodeName = fmt.Sprint("agent-", i), fmt.Sprintf("n%03d", i)
		a.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		switch i {
		case maxAgents:
			a.Status.Conditions = nil
		case maxAgents + 1:
			a.Status.ContainerStatuses[0].RestartCount = 2
		}
		if err := client.Tracker().Add(a); err != nil {
			t.Fatal(err)
		}
	}
	r := &Report{Client: client, Objects: profiles}
	r.Collect(t.Context())
	files := unpacked(t, r)
	for _, i := range []int{0, maxAgents, maxAgents + 1} {
		if name := fmt.Sprintf("logs/mesh-agent-%d.log", i); files[name] == "" {
			t.Errorf("no %s", name)
		}
	}
	if len(r.NotRead) != 1 || !strings.Contains(r.NotRead[0], "50 of 52") {
		t.Errorf("%q", r.NotRead)
	}
}

func TestReport_manyEvents_areSaidToBeMore(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.EventList{ListMeta: metav1.ListMeta{Continue: "a"}, Items: make([]corev1.Event, 3)}, nil
	})
	r := &Report{Client: client, Objects: profiles}
	r.Collect(t.Context())
	if want := "  events-of-pods.json: the first 3 are here, and there are more"; !strings.Contains(unpacked(t, r)["README.txt"], want) {
		t.Errorf("%q", r.NotRead)
	}
}

func TestRedactText_secrets_areTakenOut(t *testing.T) {
	for in, want := range map[string]string{ //nolint:gosec // they are no credentials
		"token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbg is old":    "token REDACTED is old",
		"authorization: bearer abcdefgh12345678":                      "authorization: bearer REDACTED",
		`{"password":"a b","x":1}`:                                    `{"password":"REDACTED b","x":1}`,
		`{\"token\":\"abc\"}`:                                         `{\"token\":\"REDACTED\"}`,
		"PASSWORD=abc next":                                           "PASSWORD=REDACTED next",
		"https://user:pw@host/x":                                      "https://user:REDACTED@host/x",
		"-----BEGIN EC PRIVATE KEY-----\nabc\n(cut":                   "REDACTED",
		"secretName: mesh, --sidecar-token-audiences=a, tokens: 3":    "secretName: mesh, --sidecar-token-audiences=a, tokens: 3",
		"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----": "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
		"pod shop/cart: rules applied":                                "pod shop/cart: rules applied",
	} {
		if got := string(redactText([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
