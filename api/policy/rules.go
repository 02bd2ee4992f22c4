package policy

// rule is a built-in rule: the name that OpenStack Cyborg gives it, what it
// requires, and what it permits.
type rule struct {
	name, requires, about string
	// legacy is what OpenStack Cyborg accepts as well while its new defaults are
	// not enforced.
	legacy string
}

// adminOrOwner is the old default. Its second half is true for every user of
// Keystone that has a project. Static tokens and certificates have no user id:
// their role says what they may do.
const adminOrOwner = "is_admin:True or (project_id:%(project_id)s and not user_id:None)"

// builtinTable has the rules of OpenStack Cyborg (its package policies), with
// the defaults that it calls new.
var builtinTable = []rule{
	{"admin_api", "role:admin", "the cloud's administrators", ""},
	{"project_admin_api", "role:admin and project_id:%(project_id)s", "administrators of a project", ""},
	{"project_manager_api", "role:manager and project_id:%(project_id)s", "managers of a project", ""},
	{"project_member_api", "role:member and project_id:%(project_id)s", "members of a project", ""},
	{"project_reader_api", "role:reader and project_id:%(project_id)s", "readers of a project", ""},
	{"service_api", "role:service", "other services", ""},
	{"project_manager_or_admin", "rule:project_manager_api or rule:admin_api", "managers and administrators", adminOrOwner},
	{"project_member_or_admin", "rule:project_member_api or rule:admin_api", "members and administrators", adminOrOwner},
	{"project_reader_or_admin", "rule:project_reader_api or rule:admin_api", "readers and administrators", adminOrOwner},
	{"project_member_or_service", "rule:project_member_api or rule:service_api", "members and other services", adminOrOwner},

	// Names that operators' files may still refer to.
	{"public_api", "is_public_api:True", "old: nobody; public routes have no rule", ""},
	{"allow", "@", "old: everybody", ""},
	{"deny", "!", "old: nobody", ""},
	{"default", "rule:admin_or_owner", "old: administrators and whoever has a project", ""},
	{"is_admin", "rule:admin_api", "old: the cloud's administrators", ""},
	{"admin_or_owner", adminOrOwner, "old: administrators and whoever has a project", ""},
	{"admin_or_user", "is_admin:True or user_id:%(user_id)s", "old: administrators and every user", ""},

	{"cyborg:device_profile:get_all", "rule:project_reader_or_admin", "list device profiles", "rule:admin_or_owner"},
	{"cyborg:device_profile:get_one", "rule:project_reader_or_admin", "show a device profile", "rule:admin_or_owner"},
	{"cyborg:device_profile:create", "rule:admin_api", "create a device profile", "rule:is_admin"},
	{"cyborg:device_profile:delete", "rule:admin_api", "delete device profiles", "rule:is_admin"},
	{"cyborg:arq:get_all", "rule:project_reader_or_admin", "list accelerator requests", "rule:admin_or_owner"},
	{"cyborg:arq:get_one", "rule:project_reader_or_admin", "show an accelerator request", "rule:admin_or_owner"},
	{"cyborg:arq:create", "rule:project_member_or_service", "create accelerator requests", "rule:project_member_or_admin"},
	{"cyborg:arq:update", "rule:project_member_or_service", "bind and unbind accelerator requests, which also needs a service token", "rule:admin_or_owner"},
	{"cyborg:arq:delete", "rule:project_member_or_service", "delete accelerator requests", "rule:admin_or_owner"},
	{"cyborg:device:get_all", "rule:project_manager_or_admin", "list devices", "rule:admin_api"},
	{"cyborg:device:get_one", "rule:project_manager_or_admin", "show a device", "rule:admin_api"},
	{"cyborg:device:enable", "rule:admin_api", "end the maintenance of a device", ""},
	{"cyborg:device:disable", "rule:admin_api", "begin the maintenance of a device", ""},
	{"cyborg:deployable:get_all", "rule:project_manager_or_admin", "list deployables", "rule:admin_api"},
	{"cyborg:deployable:get_one", "rule:project_manager_or_admin", "show a deployable", "rule:admin_api"},
	{"cyborg:deployable:program", "rule:admin_api", "program a deployable", ""},
	{"cyborg:attribute:get_all", "rule:project_manager_or_admin", "list attributes of deployables", "rule:admin_api"},
	{"cyborg:attribute:get_one", "rule:project_manager_or_admin", "show an attribute of a deployable", "rule:admin_api"},
	{"cyborg:attribute:create", "rule:admin_api", "add an attribute to a deployable", ""},
	{"cyborg:attribute:delete", "rule:admin_api", "take an attribute from a deployable", ""},
}
