package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/home"
)

// mapAPI is an API server with one ConfigMap, or without it.
type mapAPI struct {
	mu     sync.Mutex
	object *corev1.ConfigMap
	fails  error // of lists
	breaks error // of watches
	lists  int
	asked  []string // by lists and watches
	tells  *watch.FakeWatcher
}

func (a *mapAPI) client() client.WithWatch {
	note := func(options []client.ListOption) {
		o := (&client.ListOptions{}).ApplyOptions(options)
		a.asked = append(a.asked, o.Namespace+" "+o.FieldSelector.String())
	}
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.lists++
			note(options)
			found, ok := list.(*corev1.ConfigMapList)
			if !ok {
				return errors.New("asked for something else")
			}
			if found.ResourceVersion = "7"; a.object != nil {
				found.Items = []corev1.ConfigMap{*a.object}
			}
			return a.fails
		},
		Watch: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			note(options)
			a.tells = watch.NewFake()
			return a.tells, a.breaks
		},
	})
}

func rootCert(text, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "istio-ca-root-cert", ResourceVersion: version},
		Data:       map[string]string{"root-cert.pem": text}, BinaryData: map[string][]byte{"crl": {1}},
	}
}

// mustHave reads the ConfigMap as workers do.
func (c *configMaps) mustHave(t *testing.T, want string) {
	t.Helper()
	got, err := c.ConfigMap(t.Context(), "shop", v1alpha1.ConfigMapKeys{Name: "istio-ca-root-cert"})
	if err != nil || string(got["root-cert.pem"]) != want || len(got["crl"]) != 1 {
		t.Errorf("read %q, error %v; want %q", got, err, want)
	}
}

func (c *configMaps) mustMiss(t *testing.T) {
	t.Helper()
	if got, err := c.ConfigMap(t.Context(), "shop", v1alpha1.ConfigMapKeys{Name: "istio-ca-root-cert"}); !errors.Is(err, home.ErrNoConfigMap) {
		t.Errorf("read %q, error %v", got, err)
	}
}

// One object is listed and watched once, whatever the number of reads. A change is there at once.
func TestConfigMap_changes_areReadWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mapAPI{object: rootCert("one", "5")}
		c := &configMaps{api: api.client()}
		for range 100 {
			c.mustHave(t, "one")
			<-time.After(time.Minute)
		}
		synctest.Wait()
		api.tells.Modify(rootCert("two", "8"))
		synctest.Wait()
		c.mustHave(t, "two")
		want := "shop metadata.name=istio-ca-root-cert"
		if api.lists != 1 || len(api.asked) != 2 || api.asked[0] != want || api.asked[1] != want {
			t.Errorf("%d lists; asked %q", api.lists, api.asked)
		}
		<-time.After(followFor + time.Second)
		synctest.Wait()
		if len(c.known) != 0 {
			t.Error("it is followed though nobody reads it")
		}
		api.object = rootCert("three", "9")
		c.mustHave(t, "three")
		<-time.After(followFor + time.Second) // the watch ends with the test
	})
}

func TestConfigMap_deletedAndMadeAnew_isReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mapAPI{object: rootCert("one", "5")}
		c := &configMaps{api: api.client()}
		c.mustHave(t, "one")
		synctest.Wait()
		for _, text := range []string{"two", "three"} {
			api.tells.Delete(rootCert("one", "8"))
			synctest.Wait()
			c.mustMiss(t)
			api.tells.Add(rootCert(text, "9"))
			synctest.Wait()
			c.mustHave(t, text)
		}
		if api.lists != 1 {
			t.Errorf("%d lists", api.lists)
		}
		<-time.After(followFor + time.Second)
	})
}

// An object that is missing is listed and watched once, too.
func TestConfigMap_missing_hundredProxiesAskAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mapAPI{}
		c := &configMaps{api: api.client()}
		for range 6 {
			for range 100 {
				c.mustMiss(t)
			}
			<-time.After(10 * time.Second)
		}
		synctest.Wait()
		api.tells.Add(rootCert("late", "8"))
		synctest.Wait()
		c.mustHave(t, "late")
		if api.lists != 1 {
			t.Errorf("%d lists in a minute", api.lists)
		}
		<-time.After(followFor + time.Second)
	})
}

// While the API server is away the values that are known stay, and it is asked ever more rarely.
func TestConfigMap_watchFails_waitsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mapAPI{object: rootCert("one", "5"), breaks: errors.New("connection refused")}
		c := &configMaps{api: api.client()}
		for range 60 {
			c.mustHave(t, "one")
			<-time.After(10 * time.Second)
		}
		api.mu.Lock()
		asked := len(api.asked)
		api.mu.Unlock()
		if asked > 150 || api.lists != 1 {
			t.Errorf("%d requests in 10 minutes, %d lists", asked, api.lists)
		}
		<-time.After(followFor + time.Minute)
	})
}

// The API server no longer knows what has changed since: the object is read again, whether it says so in the watch or in its place.
func TestConfigMap_versionTooOld_isReadAgain(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old")
	for name, c := range map[string]func(a *mapAPI){
		"by an event":   func(a *mapAPI) { a.tells.Error(&gone.ErrStatus) },
		"by the answer": func(a *mapAPI) { a.breaks = gone; a.tells.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &mapAPI{object: rootCert("one", "5")}
				maps := &configMaps{api: api.client()}
				maps.mustHave(t, "one")
				synctest.Wait()
				c(api)
				<-time.After(10 * time.Second)
				synctest.Wait()
				api.object, api.breaks = rootCert("two", "8"), nil
				maps.mustHave(t, "two")
				<-time.After(followFor + time.Second)
			})
		})
	}
}

func TestConfigMap_cannotBeRead_saysWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mapAPI{object: rootCert("one", "5"), fails: apierrors.NewForbidden(corev1.Resource("configmaps"), "a", errors.New("no"))}
		c := &configMaps{api: api.client()}
		want := v1alpha1.ConfigMapKeys{Name: "a", Keys: []string{"ca.crt"}}
		if _, err := c.ConfigMap(t.Context(), "shop", want); err == nil || !strings.Contains(err.Error(), "name it in the chart's value proxies.configMaps") {
			t.Errorf("error %v", err)
		}
		api.fails = nil
		<-time.After(readPause)
		if _, err := c.ConfigMap(t.Context(), "shop", want); err == nil || err.Error() != `it has no key "ca.crt"` {
			t.Errorf("error %v", err)
		}
		want.Keys = []string{"root-cert.pem"}
		if got, err := c.ConfigMap(t.Context(), "shop", want); err != nil || len(got) != 1 {
			t.Errorf("one key: %q, error %v", got, err)
		}
		<-time.After(followFor + time.Second)
	})
}
