// Knobs, the calls that are told to fail, counts, the devices and their ports.
#include "double.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
device devices[16];
int n_devices;
struct knobs knob = {.max_msg = 1 << 30, .max_inline = 220, .atomics = UBV_ATOMIC_HCA, .tags = 256, .patience = 10, .extension = WHOLE};
struct counts count;

void die(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fputs("verbstest: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	abort();
}

static const char *const call_names[CALLS] = {
#define NAME(result, name, params) #name,
	UBV_CALLS(NAME) UBV_OPTIONAL(NAME) "query_gid_table", "post_send", "post_recv", "post_srq_recv", "poll_cq",
	"req_notify_cq"
#undef NAME
};
static long calls[CALLS];

enum { RULES = 16 };
static rule failures[RULES], statuses[RULES];
static int n_failures, n_statuses;
static const char *const op_names[OPS] = {
	"WRITE", "WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "READ", "CMP_SWAP", "FETCH_ADD", "RECV",
};

// ruled counts a call or operation, and returns the rule that applies to it, 0 if none does.
static rule *ruled(rule *rules, int n, int what) {
	rule *found = 0;
	for (rule *r = rules; r < rules + n; r++)
		if (r->what == what) {
			r->at++;
			if (r->n == 0 || r->n == r->at)
				found = r;
		}
	return found;
}

rule *told(int op) { return ruled(statuses, n_statuses, op); }

int enter(int call) {
	pthread_mutex_lock(&lock);
	calls[call]++;
	rule *r = ruled(failures, n_failures, call);
	return r ? r->result : 0;
}
void leave(int *unused) { pthread_mutex_unlock(&lock); }

static const char *const counter_files[COUNTERS] = {
	[XMIT_DATA] = "counters/port_xmit_data", [RCV_DATA] = "counters/port_rcv_data",
	[XMIT_PACKETS] = "counters/port_xmit_packets", [RCV_PACKETS] = "counters/port_rcv_packets",
	[LINK_DOWNED] = "counters/link_downed", [RNR] = "hw_counters/rnr_nak_retry_err",
	[TIMEOUT] = "hw_counters/local_ack_timeout_err", [ACCESS_REQ] = "hw_counters/req_remote_access_errors",
	[ACCESS_RESP] = "hw_counters/resp_remote_access_errors",
};

void bump(device *d, int counter, uint64_t n) {
	d->counters[counter] += n;
	if (!*knob.sysfs)
		return;
	char path[512], text[32];
	snprintf(path, sizeof path, "%s/%s/ports/1/%s", knob.sysfs, d->v.name, counter_files[counter]);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return; // this driver does not have the counter
	int length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)d->counters[counter]);
	if (pwrite(fd, text, length, 0) != length) // numbers only grow, so the new one covers the old
		die("%s: cannot write", path);
	close(fd);
}

void turn_port(device *d, int down) {
	if (d->down == down)
		return;
	d->down = down;
	d->down_after = 0;
	dirty = 1;
	if (down)
		bump(d, LINK_DOWNED, 1);
	for (context *c = contexts; c; c = c->next)
		if (c->dev == d)
			raise_event(c, down ? UBV_EVENT_PORT_ERR : UBV_EVENT_PORT_ACTIVE, 0, 0);
}

const char *const status_names[STATUSES] = {"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
	"WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
	"RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "", "", "", "", "", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR"};

static int word(const char *const *names, int n, const char *s, const char *knob) {
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], s) == 0)
			return i;
	die("%s: what is %s?", knob, s);
	return -1;
}

static int errno_of(const char *s) {
	static const struct {
		const char *name;
		int value;
	} all[] = {{"EPERM", EPERM}, {"ENOENT", ENOENT}, {"EINTR", EINTR}, {"EIO", EIO}, {"EBADF", EBADF}, {"EAGAIN", EAGAIN},
		{"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EFAULT", EFAULT}, {"EBUSY", EBUSY}, {"ENODEV", ENODEV}, {"EINVAL", EINVAL},
		{"EMFILE", EMFILE}, {"ENOSPC", ENOSPC}, {"ENOSYS", ENOSYS}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ETIMEDOUT", ETIMEDOUT},
		{"ENETUNREACH", ENETUNREACH}, {"ENODATA", ENODATA}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(all[i].name, s) == 0)
			return all[i].value;
	int n = atoi(s);
	if (n <= 0)
		die("FAIL: what is %s?", s);
	return n;
}

// set_rules reads what:n:result[:vendor],..., the form of FAIL and STATUS.
static int set_rules(const char *knob, char *value, rule *rules) {
	int n = 0, fail = strcmp(knob, "FAIL") == 0;
	for (char *rest = 0, *item = strtok_r(value, ",", &rest); item; item = strtok_r(0, ",", &rest)) {
		char *parts[4] = {0}, *more = 0;
		int k = 0;
		for (char *p = strtok_r(item, ":", &more); p && k < 4; p = strtok_r(0, ":", &more))
			parts[k++] = p;
		if (n == RULES || k < (fail ? 2 : 3) || (strcmp(parts[1], "*") && atol(parts[1]) < 1))
			die("%s: %d rules at most, of which %s is none", knob, RULES, item);
		rule r = {.n = atol(parts[1]), .vendor = parts[3] ? strtol(parts[3], 0, 0) : 0};
		if (fail) {
			r.what = word(call_names, CALLS, parts[0], knob);
			r.result = parts[2] ? errno_of(parts[2]) : EIO;
		} else {
			r.what = word(op_names, OPS, parts[0], knob);
			r.result = strcmp(parts[2], "NEVER") ? word(status_names, STATUSES, parts[2], knob) : NEVER;
		}
		rules[n++] = r;
	}
	return n;
}

static void set_ports(char *value) {
	for (char *rest = 0, *item = strtok_r(value, ",", &rest); item; item = strtok_r(0, ",", &rest)) {
		char *what = strchr(item, '=');
		if (what)
			*what++ = 0;
		for (device *d = devices; d < devices + n_devices; d++) {
			long after = 0;
			const char *do_it = what ? what : item;
			if (what && strcmp(item, d->v.name))
				continue;
			if (!strcmp(do_it, "down") || !strcmp(do_it, "up"))
				turn_port(d, *do_it == 'd');
			else if (sscanf(do_it, "down_after:%ld", &after) == 1 && after > 0)
				d->down_after = d->work + after;
			else
				die("PORT: what is %s?", do_it);
		}
	}
}

static int loaded;

// set returns 0 if there is no such knob.
static int set(const char *name, const char *text) {
	static const struct {
		const char *name;
		long *value;
	} numbers[] = {{"MAX_MSG", &knob.max_msg}, {"MAX_INLINE", &knob.max_inline}, {"MEMLOCK", &knob.memlock}, {"ODP", &knob.odp},
		{"ATOMICS", &knob.atomics}, {"DMABUF", &knob.dmabuf}, {"IN_ORDER", &knob.in_order}, {"GRH", &knob.grh}, {"TAGS", &knob.tags},
		{"SILENT", &knob.silent}, {"PATIENCE", &knob.patience}};
	char value[1024], *end;
	if (strlen(text) >= sizeof value)
		die("%s: too long", name);
	strcpy(value, text);
	long number = strtol(value, &end, 0);
	int whole = *value && !*end;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (strcmp(name, numbers[i].name) == 0) {
			if (!whole || number < 0)
				die("%s=%s: a number is wanted", name, value);
			*numbers[i].value = number;
			return 1;
		}
	if (!strcmp(name, "FAIL"))
		n_failures = set_rules(name, value, failures);
	else if (!strcmp(name, "STATUS"))
		n_statuses = set_rules(name, value, statuses);
	else if (!strcmp(name, "SYSFS") && strlen(value) < sizeof knob.sysfs)
		strcpy(knob.sysfs, value);
	else if (!strcmp(name, "EXTENSION"))
		knob.extension = word((const char *const[]){"none", "short"}, 2, value, name);
	else if (!strcmp(name, "PORT"))
		set_ports(value);
	else if (!loaded && !strcmp(name, "LINK"))
		knob.ethernet = word((const char *const[]){"InfiniBand", "Ethernet"}, 2, value, name);
	else if (!loaded && !strcmp(name, "DEVICES") && whole && number >= 0 && number <= 16)
		n_devices = number;
	else
		return 0;
	settle();
	return 1;
}

// make_device gives the i-th device its addresses, and a table of GIDs of its link's kind, with an empty row in it.
static void make_device(int i) {
	device *d = &devices[i];
	ubv_device *v = &d->v;
	v->node_type = 1;
	snprintf(v->name, sizeof v->name, "double%d", i);
	snprintf(v->dev_name, sizeof v->dev_name, "uverbs%d", i);
	snprintf(v->dev_path, sizeof v->dev_path, "/sys/class/infiniband_verbs/uverbs%d", i);
	snprintf(v->ibdev_path, sizeof v->ibdev_path, "%s/double%d", *knob.sysfs ? knob.sysfs : "/sys/class/infiniband", i);
	uint8_t link[16] = {0xfe, 0x80, [8] = 0x02, 0xd0, 0xb1, 0xff, 0xfe, 0, 0, 1 + i};
	uint8_t ip[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1 + i};
	memcpy(&d->guid, link + 8, 8); // kept in network byte order
	if (!knob.ethernet) {
		d->lid = 1 + i;
		d->gids[0] = (ubv_gid_entry){.index = 0, .port = 1, .type = UBV_GID_IB};
		memcpy(d->gids[0].gid, link, 16);
		return;
	}
	for (int row = 0; row < 5; row++) {
		if (row == 2)
			continue;
		int type = row == 0 || row == 3 ? UBV_GID_ROCE_V1 : UBV_GID_ROCE_V2;
		d->gids[row] = (ubv_gid_entry){.index = row, .port = 1, .type = type, .ifindex = 1};
		memcpy(d->gids[row].gid, row < 2 ? link : ip, 16);
	}
}

__attribute__((constructor)) static void load(void) {
	extern char **environ;
	n_devices = 1;
	char *ports = 0;
	for (char **e = environ; *e; e++) {
		char name[64], *value = strchr(*e, '=');
		if (strncmp(*e, "VERBSTEST_", 10) || !value || value - *e >= (long)sizeof name)
			continue;
		snprintf(name, value - *e - 9, "%s", *e + 10);
		if (!strcmp(name, "PORT"))
			ports = value + 1; // set only after the devices exist
		else if (!set(name, value + 1))
			die("there is no knob %s=%s", name, value + 1);
	}
	for (int i = 0; i < n_devices; i++)
		make_device(i);
	loaded = 1;
	if (ports)
		set("PORT", ports);
}

// verbstest_set sets a knob in a running program. It returns 0 if no knob of that name can be set then.
EXPORT int verbstest_set(const char *name, const char *value) {
	pthread_mutex_lock(&lock);
	int ok = set(name, value);
	pthread_mutex_unlock(&lock);
	return ok;
}

// verbstest_count returns how often a call was made ("reg_mr", "post_send"), how much work there was ("work", "inline",
// "signaled", "receives"), or how many objects live ("mr", "pd", ...; "odp" for on-demand regions, "pinned" for bytes).
// It returns -1 if it knows no such name.
EXPORT long verbstest_count(const char *what) {
	static const struct {
		const char *name;
		long *n;
	} all[] = {{"work", &count.work}, {"inline", &count.inlined}, {"signaled", &count.signaled}, {"receives", &count.receives},
		{"context", &count.context}, {"pd", &count.pd}, {"mr", &count.mr}, {"qp", &count.qp}, {"cq", &count.cq},
		{"srq", &count.srq}, {"channel", &count.channel}, {"pinned", &count.pinned}, {"odp", &count.odp}};
	long n = -1;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(all[i].name, what) == 0)
			n = *all[i].n;
	for (int i = 0; i < CALLS; i++)
		if (strcmp(call_names[i], what) == 0)
			n = calls[i];
	pthread_mutex_unlock(&lock);
	return n;
}

