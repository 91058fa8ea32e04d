package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With monitoring.secure, as in this run, only those read the agent's metrics who have the chart's role.
//
//e2e:rounds wait
func TestMetricsByTLSAreForThoseWhoMay(t *testing.T) {
	s := newSpace(t, nil)
	reader, stranger := s.account(t, "reader"), s.account(t, "stranger")
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: agentName + "-metrics-reader"}
	binding, err := s.api.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, RoleRef: role,
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: "reader"}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, s.api.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(t.Context()), binding.Name, metav1.DeleteOptions{}))
	})
	for name, tc := range map[string]struct {
		scheme, token string
		want          int
	}{
		"who may":              {"https", reader, http.StatusOK},
		"who may not":          {"https", stranger, http.StatusForbidden},
		"a token of nobody":    {"https", "nobody", http.StatusUnauthorized},
		"no token":             {"https", "", http.StatusUnauthorized},
		"a token without TLS":  {"http", reader, http.StatusBadRequest},
		"nothing, without TLS": {"http", "", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			eventually(t, name, func(ctx context.Context) error { // the API server learns of the binding a moment later
				code, err := s.scrape(ctx, tc.scheme, tc.token)
				if err == nil && code != tc.want {
					err = fmt.Errorf("status %d, want %d", code, tc.want)
				}
				return err
			})
		})
	}
}

// account makes a ServiceAccount, and returns a token of it.
func (s *space) account(t *testing.T, name string) string {
	t.Helper()
	accounts := s.api.CoreV1().ServiceAccounts(s.name)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	made, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return made.Status.Token
}

// scrape asks for the agent's metrics as Prometheus does, and returns the status.
func (s *space) scrape(ctx context.Context, scheme, token string) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+s.node.ip()+":15079/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // self-signed
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
