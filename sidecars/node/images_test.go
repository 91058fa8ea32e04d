package node

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/secretvolume"
)

// puller is a runtime's image service that asks a registry for an image's manifest, with the credentials that it is given.
type puller struct {
	criv1.UnimplementedImageServiceServer

	registry *httptest.Server
	there    bool
	pulls    []*criv1.PullImageRequest
}

func (p *puller) ImageStatus(context.Context, *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	if p.there {
		return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: "sha256:1"}}, nil
	}
	return &criv1.ImageStatusResponse{}, nil
}

func (p *puller) PullImage(ctx context.Context, r *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	p.pulls = append(p.pulls, r)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.registry.URL+"/v2/proxy/manifests/1", http.NoBody)
	if err != nil {
		return nil, err
	}
	if r.GetAuth() != nil {
		request.SetBasicAuth(r.GetAuth().GetUsername(), r.GetAuth().GetPassword())
	}
	response, err := p.registry.Client().Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read
	if response.StatusCode != http.StatusOK {
		return nil, grpcstatus.Errorf(codes.Unknown, "pull %s: %s", r.GetImage().GetImage(), response.Status)
	}
	p.there = true
	return &criv1.PullImageResponse{ImageRef: "sha256:1"}, nil
}

// newPuller returns a runtime with a registry that only user and password may read.
func newPuller(t *testing.T, user, password string) (*puller, *container.Runtime) {
	t.Helper()
	p := &puller{registry: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, pw, ok := r.BasicAuth(); !ok || u != user || pw != password {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))}
	t.Cleanup(p.registry.Close)
	return p, container.New(serveCRI(t, func(server *grpc.Server) { criv1.RegisterImageServiceServer(server, p) }), t.TempDir())
}

// mounted shows a Secret as the kubelet mounts it. Without values it is one that is missing.
func mounted(t *testing.T, root, name string, values map[string]string) {
	t.Helper()
	version := filepath.Join(root, name, "..1")
	err := os.MkdirAll(version, 0o700)
	for key, value := range values {
		err = errors.Join(err, os.WriteFile(filepath.Join(version, key), []byte(value), 0o600))
	}
	if err = errors.Join(err, os.Symlink("..1", filepath.Join(root, name, "..data"))); err != nil {
		t.Fatal(err)
	}
}

// ensured has an image brought to the node, until it is there or cannot be pulled.
func ensured(t *testing.T, images *sidecarImages, p *profile.Version) error {
	t.Helper()
	done := make(chan struct{}, 1)
	images.done = func() { done <- struct{}{} }
	err := images.Ensure(t.Context(), p)
	if !errors.Is(err, sidecars.ErrPulling) {
		return err
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the pull does not end")
	}
	return images.Ensure(t.Context(), p)
}

func TestEnsure_profileNamesSecrets_pullsWithThem(t *testing.T) {
	const right, wrong = `{"auths": {"b.example": {"username": "u", "password": "hunter2"}}}`, `{"auths": {"b.example": {"username": "u", "password": "letmein"}}}`
	secrets := map[string]map[string]string{
		"right": {container.DockerConfigKey: right}, "wrong": {container.DockerConfigKey: wrong}, "malformed": {container.DockerConfigKey: "hunter2"},
		"other": {container.DockerConfigKey: `{"auths": {"a.example": {"username": "u", "password": "hunter2"}}}`}, "opaque": {"a": "b"}, "missing": nil,
	}
	for name, c := range map[string]struct {
		secrets []string
		pulls   int
		want    string // of the message
	}{
		"the right ones":                        {[]string{"right"}, 1, ""},
		"the second are right":                  {[]string{"wrong", "right"}, 2, ""},
		"one is missing, another right":         {[]string{"missing", "malformed", "right"}, 1, ""},
		"none":                                  {nil, 1, "401 Unauthorized"},
		"the wrong ones":                        {[]string{"wrong"}, 1, "401 Unauthorized"},
		"a Secret that is missing":              {[]string{"missing"}, 1, `Secret "missing": it is not there, or empty: create it in the agent's namespace`},
		"a Secret that the chart does not name": {[]string{"unknown"}, 1, `Secret "unknown": it is not one of the Secrets that the agent may use: name it in the chart's value proxies.secrets`},
		"a malformed one":                       {[]string{"malformed"}, 1, `Secret "malformed": it is not of the form {"auths":`},
		"another kind of Secret":                {[]string{"opaque"}, 1, `Secret "opaque": it has no key ".dockerconfigjson"`},
		"another registry's, and a missing one": {[]string{"other", "missing"}, 1, `Secret "other": it has no credentials for the image's registry; imagePullSecrets: Secret "missing"`},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for secret, values := range secrets {
				mounted(t, root, secret, values)
			}
			registry, runtime := newPuller(t, "u", "hunter2")
			p := &profile.Version{Spec: profile.Spec{Image: "b.example/proxy:1"}}
			for _, secret := range c.secrets {
				p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1alpha1.SecretReference{Name: secret})
			}
			err := ensured(t, &sidecarImages{runtime: runtime, secrets: secretvolume.Volumes{Root: root}}, p)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "%!")) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if len(registry.pulls) != c.pulls || registry.there != (c.want == "") {
				t.Errorf("%d pulls, want %d; the image is there: %t", len(registry.pulls), c.pulls, registry.there)
			}
		})
	}
}

// A profile's failure is not told to another one that has other credentials for the same image.
func TestEnsure_twoProfilesOfOneImage_pullWithTheirOwnSecrets(t *testing.T) {
	root := t.TempDir()
	mounted(t, root, "right", map[string]string{container.DockerConfigKey: `{"auths": {"b.example": {"username": "u", "password": "p"}}}`})
	registry, runtime := newPuller(t, "u", "p")
	images := &sidecarImages{runtime: runtime, secrets: secretvolume.Volumes{Root: root}}
	without := &profile.Version{Spec: profile.Spec{Image: "b.example/proxy:1"}}
	with := &profile.Version{Spec: profile.Spec{Image: "b.example/proxy:1", ImagePullSecrets: []v1alpha1.SecretReference{{Name: "right"}}}}
	done := make(chan struct{}, 1)
	images.done = func() { done <- struct{}{} }
	if err := images.Ensure(t.Context(), without); !errors.Is(err, sidecars.ErrPulling) {
		t.Fatal(err)
	}
	<-done
	if err := ensured(t, images, with); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	registry.there = false
	if err := images.Ensure(t.Context(), without); !errors.Is(err, container.ErrNotPulled) {
		t.Errorf("without credentials: %v", err)
	}
}

// A registry that refuses an image is not asked again for each pod that waits for it, and each pod says why it waits.
func TestEnsure_manyPodsWait_pullsOnce(t *testing.T) {
	registry, runtime := newPuller(t, "u", "p")
	images := &sidecarImages{runtime: runtime, pause: time.Hour}
	p := &profile.Version{Spec: profile.Spec{Image: "b.example/proxy:1"}}
	for pod := range 10 {
		if err := ensured(t, images, p); !errors.Is(err, container.ErrNotPulled) {
			t.Errorf("pod %d: %v", pod, err)
		}
	}
	if len(registry.pulls) != 1 {
		t.Errorf("%d pulls, want 1", len(registry.pulls))
	}
	images.pause = 0
	if err := ensured(t, images, p); !errors.Is(err, container.ErrNotPulled) || len(registry.pulls) != 2 {
		t.Errorf("after the pause: %d pulls, want 2; %v", len(registry.pulls), err)
	}
}

// While an image is pulled nobody starts another pull of it. One that has been removed from the node since is pulled again.
func TestEnsure_twoProfiles_pullOneAtATime(t *testing.T) {
	registry, runtime := newPuller(t, "robot", "p")
	asked, answer, done := make(chan struct{}, 3), make(chan int, 3), make(chan struct{}, 3)
	registry.registry.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.WriteHeader(<-answer)
	})
	images := &sidecarImages{runtime: runtime, done: func() { done <- struct{}{} }}
	p := &profile.Version{Spec: profile.Spec{Image: "b.example/proxy:1"}}
	for range 2 {
		for pod := range 3 {
			if err := images.Ensure(t.Context(), p); !errors.Is(err, sidecars.ErrPulling) {
				t.Errorf("pod %d: %v", pod, err)
			}
		}
		<-asked
		answer <- http.StatusOK
		<-done
		registry.there = false
	}
	if len(registry.pulls) != 2 {
		t.Errorf("%d pulls, want 2", len(registry.pulls))
	}
}
